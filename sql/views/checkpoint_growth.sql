-- Grain: one row per live checkpoint and operator; a sidecar state counts as the operator '(state)'.
-- Sources: all_checkpoints, attempt_artifacts. Run by: people who ask what grows.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   operator: the operator, or '(state)'
--   partitions: how many of its partitions have an artifact
--   bytes: size of its artifacts, as its producer wrote them
--   new_bytes: of these, what was written for this checkpoint
--   previous_id: the live checkpoint before that has something of this operator
--   previous_bytes: its size there
--   growth_bytes: how much it grew since
--   growth_ratio: how many times as large it is now
WITH sizes AS (
  SELECT
    c.stream,
    c.checkpoint_id,
    c.checkpoint_key,
    coalesce(a.operator, '(state)') AS operator,
    count(DISTINCT a.partition) AS partitions,
    sum(a.bytes) AS bytes,
    sum(a.new_bytes) AS new_bytes
  FROM {all_checkpoints} c
  JOIN {attempt_artifacts} a
    ON a.stream = c.stream AND a.checkpoint_key = c.checkpoint_key AND a.attempt = c.attempt
  WHERE c.status IN ('committed', 'prepared') AND NOT c.purged_since
  GROUP BY ALL
)
SELECT
  stream,
  checkpoint_id,
  checkpoint_key,
  operator,
  partitions,
  bytes,
  new_bytes,
  lag(checkpoint_id) OVER by_age AS previous_id,
  lag(bytes) OVER by_age AS previous_bytes,
  bytes - lag(bytes) OVER by_age AS growth_bytes,
  try_divide(CAST(bytes AS DOUBLE), lag(bytes) OVER by_age) AS growth_ratio
FROM sizes
WINDOW by_age AS (PARTITION BY stream, operator ORDER BY checkpoint_key)
