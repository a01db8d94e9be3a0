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
  SELECT stream, checkpoint_key, parent_key
  FROM judged
  WHERE NOT unpurged
),
-- An unpurged one that stands on a purged one names all that it stands on, the nearest first. What it reaches only
-- through another unpurged one is found from there.
lines AS (
  SELECT c.stream, c.checkpoint_key, a.pos, a.ancestor
  FROM judged c
  LEFT SEMI JOIN gone g ON g.stream = c.stream AND g.checkpoint_key = c.parent_key,
    LATERAL posexplode(from_json(c.details, 'line ARRAY<STRING>').line) AS a (pos, ancestor)
  WHERE c.unpurged
),
-- A line ends behind one whose own chains were all folded.
walked AS (
  SELECT
    l.stream,
    l.ancestor,
    coalesce(
      bool_and(g.parent_key IS NOT NULL) OVER (
        PARTITION BY l.stream, l.checkpoint_key ORDER BY l.pos ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ),
      TRUE
    ) AS reached
  FROM lines l
  LEFT JOIN gone g ON g.stream = l.stream AND g.checkpoint_key = l.ancestor
),
stood_on AS (
  SELECT DISTINCT stream, ancestor
  FROM walked
  WHERE reached
)
SELECT
  c.stream,
  c.checkpoint_id,
  c.checkpoint_key,
  IF(c.unpurged, c.status, 'purged') AS status,
  c.attempt,
  c.fold_attempts
FROM judged c
LEFT JOIN stood_on s ON s.stream = c.stream AND s.ancestor = c.checkpoint_key
WHERE c.unpurged OR s.ancestor IS NOT NULL
