-- Grain: one row per stream that has a committed checkpoint: the newest one.
-- Sources: all_checkpoints. Run by: people, producers that restart.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   epoch: exactly-once epoch
--   saved_at: when it was saved
--   age_seconds: seconds since it was saved
--   watermark: event-time watermark as the producer gave it
--   event_count: events processed (state-v1)
--   sinks_pending: sinks whose commit is not known yet
--   sinks_failed: sinks whose commit failed
--   artifact_count: how many artifacts it has
--   bytes: size of its artifacts
SELECT
  stream,
  checkpoint_id,
  checkpoint_key,
  epoch,
  saved_at,
  age_seconds,
  watermark,
  event_count,
  sinks_pending,
  sinks_failed,
  artifact_count,
  bytes
FROM {all_checkpoints}
WHERE is_latest
