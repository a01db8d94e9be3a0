-- Grain: one row per checkpoint whose bytes are kept: live, in the trash, or purged and still needed by one of those.
-- Sources: all_checkpoints. Run by: the other views.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   status: committed, prepared or trashed; or purged, just when the deltas of another came to stand on it
--   attempt: the attempt whose artifact rows belong to it
--   fold_attempts: further attempts, whose artifact rows are the snapshots that its chains were folded into
WITH judged AS (
  SELECT *, status IN ('committed', 'prepared', 'trashed') AND NOT purged_since AS unpurged
  FROM {all_checkpoints}
  WHERE attempt IS NOT NULL
),
gone AS (
  SELECT stream, checkpoint_key, parent_key, attempt, fold_attempts
  FROM judged
  WHERE NOT unpurged
),
-- An unpurged one at position 0, and after it all that it stands on, the nearest first. What it reaches only through
-- another unpurged one is found from there.
lines AS (
  SELECT
    c.stream,
    c.checkpoint_key AS child,
    c.status,
    c.attempt,
    c.fold_attempts,
    a.pos,
    a.checkpoint_key
  FROM judged c,
    LATERAL posexplode(
      concat(
        array(c.checkpoint_key),
        IF(c.parent_key IS NULL, array(), coalesce(from_json(c.details, 'line ARRAY<STRING>').line, array()))
      )
    ) AS a (pos, checkpoint_key)
  WHERE c.unpurged
),
-- A line goes on while what is next was purged, and ends behind one whose own chains were all folded. Several lines
-- may reach the same one.
walked AS (
  SELECT
    l.stream,
    l.checkpoint_key,
    IF(l.pos = 0, l.status, 'purged') AS status,
    IF(l.pos = 0, l.attempt, g.attempt) AS attempt,
    IF(l.pos = 0, l.fold_attempts, g.fold_attempts) AS fold_attempts,
    l.pos = 0 OR g.attempt IS NOT NULL
      AND bool_and(l.pos = 0 OR g.parent_key IS NOT NULL) OVER (
        PARTITION BY l.stream, l.child ORDER BY l.pos ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS kept
  FROM lines l
  LEFT JOIN gone g ON l.pos > 0 AND g.stream = l.stream AND g.checkpoint_key = l.checkpoint_key
)
SELECT
  stream,
  {checkpoint_id} AS checkpoint_id,
  checkpoint_key,
  any_value(status) AS status,
  any_value(attempt) AS attempt,
  any_value(fold_attempts) AS fold_attempts
FROM walked
WHERE kept
GROUP BY stream, checkpoint_key
