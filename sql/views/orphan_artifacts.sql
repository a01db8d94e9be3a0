-- Grain: one row per attempt whose bytes no live or trashed checkpoint needs, as things are now.
-- Sources: artifacts (without the bytes), all_checkpoints, kept_checkpoints, checkpoints. Run by: people who look for space.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id that it was written for
--   checkpoint_key: the id as text that sorts by age
--   attempt: one writer's writes to that id
--   state: orphan (a save or a fold in progress, or one that died or lost), or garbage (a purged or abandoned row says so)
--   staged_at: when its writer last began an artifact
--   age_seconds: seconds since then
--   artifact_count: how many artifacts it has
--   bytes: what a sweep would free
WITH attempts AS (
  SELECT
    stream,
    checkpoint_key,
    attempt,
    max(staged_at) AS staged_at,
    count(DISTINCT path) AS artifact_count,
    sum(IF(held_attempt IS NULL, chunk_size, 0)) AS bytes
  FROM {artifacts}
  GROUP BY stream, checkpoint_key, attempt
),
named AS (
  SELECT stream, checkpoint_key, explode(concat(array(attempt), fold_attempts)) AS attempt
  FROM {kept_checkpoints}
),
needed AS (
  SELECT stream, checkpoint_key, attempt FROM named
  UNION
  SELECT a.stream, a.held_key, a.held_attempt
  FROM {artifacts} a
  JOIN named n ON n.stream = a.stream AND n.checkpoint_key = a.checkpoint_key AND n.attempt = a.attempt
  WHERE a.held_attempt IS NOT NULL
),
given_up AS (
  SELECT DISTINCT stream, checkpoint_key, attempt
  FROM {checkpoints}
  WHERE change = 'abandoned'
)
SELECT
  a.stream,
  {a.checkpoint_id} AS checkpoint_id,
  a.checkpoint_key,
  a.attempt,
  IF(c.status IN ('purged', 'abandoned') OR g.attempt IS NOT NULL, 'garbage', 'orphan') AS state,
  a.staged_at,
  timestampdiff(SECOND, a.staged_at, current_timestamp()) AS age_seconds,
  a.artifact_count,
  a.bytes
FROM attempts a
LEFT JOIN {all_checkpoints} c ON c.stream = a.stream AND c.checkpoint_key = a.checkpoint_key
LEFT JOIN given_up g ON g.stream = a.stream AND g.checkpoint_key = a.checkpoint_key AND g.attempt = a.attempt
LEFT ANTI JOIN needed n ON n.stream = a.stream AND n.checkpoint_key = a.checkpoint_key AND n.attempt = a.attempt
