-- Grain: one row per artifact of a checkpoint whose bytes are kept: live, in the trash, or purged and still needed.
-- Sources: kept_checkpoints, attempt_artifacts. Run by: people, other views.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   status: committed, prepared or trashed; or purged, just when the deltas of another came to stand on it
--   path: the artifact's name within its checkpoint
--   kind: snapshot (complete), delta (relative to the parent), state (sidecar) or source (an imported manifest's own text)
--   operator: the operator whose state it is, NULL for a sidecar
--   partition: the operator's partition
--   bytes: its size, as far as its chunks are there
--   new_bytes: of these, what was written for this checkpoint
--   shared_bytes: of these, what an earlier checkpoint already held
--   chunks: how many chunks are there
--   chunks_expected: how many there must be, NULL if the last one is missing
--   complete: whether all chunks are there, and sizes add up
--   sha256: SHA-256 of the whole
--   staged_at: when its writer began
--   folded: whether folding made it of a chain; else its producer wrote it
SELECT
  c.stream,
  c.checkpoint_id,
  c.checkpoint_key,
  c.status,
  a.path,
  a.kind,
  a.operator,
  a.partition,
  a.bytes,
  a.new_bytes,
  a.shared_bytes,
  a.chunks,
  a.chunks_expected,
  a.complete,
  a.sha256,
  a.staged_at,
  a.attempt <> c.attempt AS folded
FROM {kept_checkpoints} c
JOIN {attempt_artifacts} a
  ON a.stream = c.stream AND a.checkpoint_key = c.checkpoint_key
  AND (a.attempt = c.attempt OR array_contains(c.fold_attempts, a.attempt))
