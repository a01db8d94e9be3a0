-- Grain: one row per thing that happened: every change of a checkpoint's life, and every event about it or its stream.
-- Sources: checkpoints, events. Run by: people who ask who did what, when and why.
-- Columns:
--   stream: the producer
--   checkpoint_id: the checkpoint it is about, NULL if it is about the stream
--   checkpoint_key: the id as text that sorts by age
--   at: when it happened
--   event: saved, promoted, updated, pinned, trashed, …; or verified, swept, …
--   revision: the checkpoint's revision that says so, NULL for an event
--   actor: who did it
--   reason: why
--   until: end of the undo window (trashed), or expiry (pinned)
--   details: measurements and findings as VARIANT
SELECT
  stream,
  {checkpoint_id} AS checkpoint_id,
  checkpoint_key,
  at,
  change AS event,
  revision,
  actor,
  reason,
  until,
  try_parse_json(details) AS details
FROM {checkpoints}
UNION ALL
SELECT
  stream,
  {checkpoint_id} AS checkpoint_id,
  checkpoint_key,
  at,
  event,
  NULL AS revision,
  actor,
  NULL AS reason,
  NULL AS until,
  try_parse_json(details) AS details
FROM {events}
