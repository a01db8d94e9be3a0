-- Grain: one row per stream that has a committed checkpoint or was ever drilled.
-- Sources: all_checkpoints, events. Run by: people who ask whether a restore would work, and how long it would take.
-- Columns:
--   stream: the producer
--   checkpoint_id: its oldest unproven checkpoint: committed, and not restored by its last drill, or never drilled
--   checkpoint_key: the id as text that sorts by age
--   unproven_age_seconds: seconds since that one was saved
--   committed: how many checkpoints are committed
--   proven: of these, how many their last drill restored
--   unproven: of these, how many it did not, or that were never drilled
--   drills: how many drills there were, of checkpoints that are gone too
--   failures: of these, how many could not restore
--   last_drill_at: when the last one was
--   last_drill_restored: whether it could restore
--   last_failure_at: when one last could not
--   last_failure_key: key of the checkpoint that could not be restored then
--   last_error: why it could not
--   seconds_p50: seconds until the state was on the disk, in half of the drills that restored at most these
--   seconds_p99: the same in 99 of 100
--   mib_per_second_p50: MiB per second, in half of the drills that restored any bytes at least these
--   mib_per_second_p99: the same in 99 of 100
WITH drills AS (
  SELECT
    stream,
    checkpoint_key,
    at,
    get_json_object(details, '$.restored') = 'true' AS restored,
    try_cast(get_json_object(details, '$.bytes') AS DOUBLE) / 1048576 AS mib,
    try_cast(get_json_object(details, '$.seconds') AS DOUBLE) AS seconds,
    get_json_object(details, '$.error') AS error
  FROM {events}
  WHERE event = 'drilled'
),
measured AS (
  SELECT
    stream,
    count(*) AS drills,
    count_if(NOT restored) AS failures,
    max(at) AS last_drill_at,
    max_by(restored, at) AS last_drill_restored,
    max(IF(restored, NULL, at)) AS last_failure_at,
    max_by(IF(restored, NULL, checkpoint_key), IF(restored, NULL, at)) AS last_failure_key,
    max_by(IF(restored, NULL, error), IF(restored, NULL, at)) AS last_error,
    percentile(IF(restored, seconds, NULL), 0.5) AS seconds_p50,
    percentile(IF(restored, seconds, NULL), 0.99) AS seconds_p99,
    percentile(IF(restored AND mib > 0, try_divide(mib, seconds), NULL), 0.5) AS mib_per_second_p50,
    percentile(IF(restored AND mib > 0, try_divide(mib, seconds), NULL), 0.01) AS mib_per_second_p99
  FROM drills
  GROUP BY stream
),
last_drills AS (
  SELECT stream, checkpoint_key, max_by(restored, at) AS restored
  FROM drills
  GROUP BY stream, checkpoint_key
),
lives AS (
  SELECT
    c.stream,
    c.checkpoint_id,
    c.checkpoint_key,
    c.age_seconds,
    coalesce(d.restored, FALSE) AS proven
  FROM {all_checkpoints} c
  LEFT JOIN last_drills d ON d.stream = c.stream AND d.checkpoint_key = c.checkpoint_key
  WHERE c.status = 'committed'
),
standing AS (
  SELECT
    stream,
    count(*) AS committed,
    count_if(proven) AS proven,
    count_if(NOT proven) AS unproven,
    min_by(IF(proven, NULL, checkpoint_id), IF(proven, NULL, checkpoint_key)) AS checkpoint_id,
    min(IF(proven, NULL, checkpoint_key)) AS checkpoint_key,
    min_by(IF(proven, NULL, age_seconds), IF(proven, NULL, checkpoint_key)) AS unproven_age_seconds
  FROM lives
  GROUP BY stream
)
SELECT
  coalesce(s.stream, m.stream) AS stream,
  s.checkpoint_id,
  s.checkpoint_key,
  s.unproven_age_seconds,
  coalesce(s.committed, 0) AS committed,
  coalesce(s.proven, 0) AS proven,
  coalesce(s.unproven, 0) AS unproven,
  coalesce(m.drills, 0) AS drills,
  coalesce(m.failures, 0) AS failures,
  m.last_drill_at,
  m.last_drill_restored,
  m.last_failure_at,
  m.last_failure_key,
  m.last_error,
  m.seconds_p50,
  m.seconds_p99,
  m.mib_per_second_p50,
  m.mib_per_second_p99
FROM standing s
FULL OUTER JOIN measured m ON m.stream = s.stream
