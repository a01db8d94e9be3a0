-- Grain: one row per checkpoint in the trash, which can be restored until its bytes are purged.
-- Sources: all_checkpoints. Run by: people who want something back.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   reason: why it was trashed
--   trashed_at: when
--   trashed_by: by whom
--   undo_until: until when restoring it is promised
--   undoable: whether that time has not come yet
--   epoch: exactly-once epoch
--   bytes: size of its artifacts
SELECT
  stream,
  checkpoint_id,
  checkpoint_key,
  trash_reason AS reason,
  trashed_at,
  trashed_by,
  undo_until,
  undo_until > current_timestamp() AS undoable,
  epoch,
  bytes
FROM {all_checkpoints}
WHERE status = 'trashed'
