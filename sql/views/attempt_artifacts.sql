-- Grain: one row per artifact of an attempt, whether a checkpoint names the attempt or not.
-- Sources: artifacts (without the bytes). Run by: the other views.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id that it was written for
--   checkpoint_key: the id as text that sorts by age
--   attempt: one writer's writes to that id
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
WITH chunks AS (
  SELECT
    stream,
    checkpoint_key,
    attempt,
    path,
    chunk_no,
    max(kind) AS kind,
    max(operator) AS operator,
    max(partition) AS partition,
    max(staged_at) AS staged_at,
    max(chunk_size) AS chunk_size,
    max(IF(coalesce(held_key, checkpoint_key) = checkpoint_key, 0, chunk_size)) AS shared_size,
    max(chunk_count) AS chunk_count,
    max(artifact_size) AS artifact_size,
    max(artifact_sha256) AS artifact_sha256
  FROM {artifacts}
  GROUP BY stream, checkpoint_key, attempt, path, chunk_no
)
SELECT
  stream,
  {checkpoint_id} AS checkpoint_id,
  checkpoint_key,
  attempt,
  path,
  max(kind) AS kind,
  max(operator) AS operator,
  max(partition) AS partition,
  sum(chunk_size) AS bytes,
  sum(chunk_size - shared_size) AS new_bytes,
  sum(shared_size) AS shared_bytes,
  count(*) AS chunks,
  max(chunk_count) AS chunks_expected,
  coalesce(
    count(*) = max(chunk_count) AND max(chunk_no) + 1 = max(chunk_count) AND sum(chunk_size) = max(artifact_size), FALSE
  ) AS complete,
  max(artifact_sha256) AS sha256,
  max(staged_at) AS staged_at
FROM chunks
GROUP BY stream, checkpoint_key, attempt, path
