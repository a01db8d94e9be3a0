-- Grain: one row per stream that has any row, also if it never committed a checkpoint.
-- Sources: all_checkpoints, artifacts, events, validation_issues. Run by: dashboards, alerts.
-- Columns:
--   stream: the producer
--   checkpoint_id: its latest committed checkpoint, NULL if there is none
--   checkpoint_key: the id as text that sorts by age
--   latest_age_seconds: seconds since the latest was saved
--   sinks_pending: sinks that have not committed the latest
--   sinks_failed: sinks that failed to commit the latest
--   committed: how many checkpoints are committed
--   prepared: how many are saved but not promoted
--   trashed: how many are in the trash
--   faults: integrity failures of live checkpoints, from metadata
--   warnings: what is odd about live checkpoints, but harmless
--   bytes: size of the artifacts of live checkpoints, folded ones included
--   trashed_bytes: size of the artifacts of trashed checkpoints, folded ones included
--   last_verified_at: when one of its checkpoints was last verified
WITH streams AS (
  SELECT DISTINCT stream FROM {all_checkpoints}
  UNION
  SELECT DISTINCT stream FROM {artifacts}
  UNION
  SELECT DISTINCT stream FROM {events}
),
lives AS (
  SELECT
    stream,
    max(IF(is_latest, checkpoint_id, NULL)) AS checkpoint_id,
    max(IF(is_latest, checkpoint_key, NULL)) AS checkpoint_key,
    max(IF(is_latest, age_seconds, NULL)) AS latest_age_seconds,
    max(IF(is_latest, sinks_pending, NULL)) AS sinks_pending,
    max(IF(is_latest, sinks_failed, NULL)) AS sinks_failed,
    count_if(status = 'committed') AS committed,
    count_if(status = 'prepared') AS prepared,
    count_if(status = 'trashed') AS trashed,
    sum(IF(status IN ('committed', 'prepared'), bytes + folded_bytes, 0)) AS bytes,
    sum(IF(status = 'trashed', bytes + folded_bytes, 0)) AS trashed_bytes
  FROM {all_checkpoints}
  GROUP BY stream
),
issues AS (
  SELECT stream, count_if(severity = 'integrity') AS faults, count_if(severity = 'warning') AS warnings
  FROM {validation_issues}
  GROUP BY stream
),
verified AS (
  SELECT stream, max(at) AS last_verified_at
  FROM {events}
  WHERE event = 'verified'
  GROUP BY stream
)
SELECT
  s.stream,
  l.checkpoint_id,
  l.checkpoint_key,
  l.latest_age_seconds,
  l.sinks_pending,
  l.sinks_failed,
  coalesce(l.committed, 0) AS committed,
  coalesce(l.prepared, 0) AS prepared,
  coalesce(l.trashed, 0) AS trashed,
  coalesce(i.faults, 0) AS faults,
  coalesce(i.warnings, 0) AS warnings,
  coalesce(l.bytes, 0) AS bytes,
  coalesce(l.trashed_bytes, 0) AS trashed_bytes,
  v.last_verified_at
FROM streams s
LEFT JOIN lives l ON l.stream = s.stream
LEFT JOIN issues i ON i.stream = s.stream
LEFT JOIN verified v ON v.stream = s.stream
