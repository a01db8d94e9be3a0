-- Grain: one row per live checkpoint: committed, or prepared and waiting to be promoted.
-- Sources: all_checkpoints, events. Run by: people, dashboards.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   status: committed or prepared
--   is_latest: whether it is the highest committed id of its stream
--   epoch: exactly-once epoch
--   saved_at: when it was saved
--   age_seconds: seconds since it was saved
--   created_at: when its producer says that it was made
--   changed_at: when it last changed (sink status, pin, …)
--   parent_key: key of the checkpoint that its deltas stand on, NULL if it is complete
--   watermark: event-time watermark as the producer gave it
--   event_count: events processed (state-v1)
--   sinks_committed: sinks that have committed it
--   sinks_pending: sinks whose commit is not known yet
--   sinks_failed: sinks whose commit failed
--   artifact_count: how many artifacts it has
--   bytes: size of its artifacts; state that rides inline in the manifest is not counted
--   new_bytes: of these, what was written for it
--   shared_bytes: of these, what an earlier checkpoint already held
--   pinned: whether a pin holds it now
--   pin_reason: why it is pinned; of several pins all reasons
--   pin_until: when the last of its pins expires, NULL if never
--   last_verified_at: when its artifacts were last verified
--   last_verified_depth: how thoroughly: metadata or hashes
WITH verified AS (
  SELECT
    stream,
    checkpoint_key,
    max(at) AS last_verified_at,
    max_by(get_json_object(details, '$.depth'), at) AS last_verified_depth
  FROM {events}
  WHERE event = 'verified'
  GROUP BY stream, checkpoint_key
)
SELECT
  c.stream,
  c.checkpoint_id,
  c.checkpoint_key,
  c.status,
  c.is_latest,
  c.epoch,
  c.saved_at,
  c.age_seconds,
  c.created_at,
  c.changed_at,
  c.parent_key,
  c.watermark,
  c.event_count,
  c.sinks_committed,
  c.sinks_pending,
  c.sinks_failed,
  c.artifact_count,
  c.bytes,
  c.new_bytes,
  c.shared_bytes,
  c.pinned,
  c.pin_reason,
  c.pin_until,
  v.last_verified_at,
  v.last_verified_depth
FROM {all_checkpoints} c
LEFT JOIN verified v ON v.stream = c.stream AND v.checkpoint_key = c.checkpoint_key
WHERE c.status IN ('committed', 'prepared')
