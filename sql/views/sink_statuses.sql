-- Grain: one row per live checkpoint and sink that has a status.
-- Sources: checkpoints, all_checkpoints. Run by: people who wait for a sink.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   sink: the name of the sink
--   status: Pending, Committed or Failed
--   error: why it failed
--   since: when the sink came into this status
--   age_seconds: seconds since then
WITH told AS (
  SELECT
    r.stream,
    c.checkpoint_id,
    r.checkpoint_key,
    r.revision,
    r.at,
    s.key AS sink,
    coalesce(
      IF(try_variant_get(s.value, '$.Failed', 'string') IS NOT NULL, 'Failed', NULL),
      try_variant_get(s.value, '$', 'string')
    ) AS status,
    try_variant_get(s.value, '$.Failed', 'string') AS error,
    r.at = c.updated_at AS is_current
  FROM {checkpoints} r
  JOIN {all_checkpoints} c ON c.stream = r.stream AND c.checkpoint_key = r.checkpoint_key,
    LATERAL variant_explode(try_parse_json(r.manifest):sink_commit_statuses) s
  WHERE c.status IN ('committed', 'prepared') AND r.manifest IS NOT NULL
),
folded AS (
  SELECT
    stream,
    checkpoint_id,
    checkpoint_key,
    sink,
    status,
    max_by(error, revision) AS error,
    min(at) AS since,
    bool_or(is_current) AS is_current
  FROM told
  GROUP BY stream, checkpoint_id, checkpoint_key, sink, status
)
SELECT
  stream,
  checkpoint_id,
  checkpoint_key,
  sink,
  status,
  error,
  since,
  timestampdiff(SECOND, since, current_timestamp()) AS age_seconds
FROM folded
WHERE is_current
