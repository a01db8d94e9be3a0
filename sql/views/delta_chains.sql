-- Grain: one row per live checkpoint and operator partition that has a delta but no snapshot, of its own or folded.
-- Sources: artifact_inventory, checkpoints. Run by: people, validation_issues.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   operator: the operator
--   partition: the operator's partition
--   links: keys of the checkpoints to read, the one with the snapshot or fold first; NULL if the chain is broken
--   depth: how many links that are; NULL if the chain is broken
--   whole: whether every link is there, down to a snapshot
--   bytes_to_read: size of all its links; NULL if the chain is broken
WITH parts AS (
  SELECT
    stream,
    checkpoint_id,
    checkpoint_key,
    operator,
    partition,
    max(status) AS status,
    bool_or(kind = 'snapshot') AS is_base,
    coalesce(sum(bytes) FILTER (WHERE folded), sum(bytes)) AS bytes
  FROM {artifact_inventory}
  WHERE operator IS NOT NULL
  GROUP BY stream, checkpoint_id, checkpoint_key, operator, partition
),
-- Every checkpoint with deltas names all that it stands on, the nearest first.
ancestors AS (
  SELECT r.stream, r.checkpoint_key, a.pos, a.ancestor
  FROM {checkpoints} r, LATERAL posexplode(from_json(r.details, 'line ARRAY<STRING>').line) AS a (pos, ancestor)
  WHERE r.revision = 0 AND r.parent IS NOT NULL
),
walked AS (
  SELECT
    d.stream,
    d.checkpoint_id,
    d.checkpoint_key,
    d.operator,
    d.partition,
    max(d.bytes) AS bytes,
    array_sort(collect_list(struct(a.pos, a.ancestor, p.is_base, p.bytes))) AS steps
  FROM parts d
  LEFT JOIN ancestors a ON a.stream = d.stream AND a.checkpoint_key = d.checkpoint_key
  LEFT JOIN parts p
    ON p.stream = d.stream AND p.checkpoint_key = a.ancestor AND p.operator = d.operator AND p.partition = d.partition
  WHERE NOT d.is_base AND d.status IN ('committed', 'prepared')
  GROUP BY d.stream, d.checkpoint_id, d.checkpoint_key, d.operator, d.partition
),
cut AS (
  SELECT
    *,
    slice(steps, 1, CAST(array_position(transform(steps, s -> coalesce(s.is_base, FALSE)), TRUE) AS INT)) AS needed
  FROM walked
),
judged AS (
  SELECT *, size(needed) > 0 AND forall(needed, s -> s.bytes IS NOT NULL) AS whole
  FROM cut
)
SELECT
  stream,
  checkpoint_id,
  checkpoint_key,
  operator,
  partition,
  IF(whole, concat(reverse(transform(needed, s -> s.ancestor)), array(checkpoint_key)), NULL) AS links,
  IF(whole, size(needed) + 1, NULL) AS depth,
  whole,
  IF(whole, aggregate(needed, bytes, (total, s) -> CAST(total + s.bytes AS BIGINT)), NULL) AS bytes_to_read
FROM judged
