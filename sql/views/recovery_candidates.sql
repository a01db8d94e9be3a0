-- Grain: one row per live checkpoint: whether recovery would take it, as far as metadata tells.
-- Sources: all_checkpoints, validation_issues. Run by: people on call, before they recover.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   eligible: whether recovery would try it
--   reason: why not, or that it would be chosen first, or after how many others
--   recovery_rank: 1 is what recovery tries first; NULL if it is not eligible
--   epoch: exactly-once epoch
--   saved_at: when it was saved
--   age_seconds: seconds since it was saved
WITH faults AS (
  SELECT stream, checkpoint_key, array_join(array_sort(collect_set(message)), '; ') AS messages
  FROM {validation_issues}
  WHERE severity = 'integrity'
  GROUP BY stream, checkpoint_key
),
judged AS (
  SELECT
    c.stream,
    c.checkpoint_id,
    c.checkpoint_key,
    c.epoch,
    c.saved_at,
    c.age_seconds,
    CASE
      WHEN c.purged_since THEN 'it was purged since'
      WHEN c.status = 'prepared' AND get_json_object(c.details, '$.source.fault') IS NOT NULL
        THEN 'it was imported as corrupt: ' || get_json_object(c.details, '$.source.fault')
      WHEN c.status <> 'committed' THEN 'it is ' || c.status
      WHEN c.format <> 'state-v1' AND c.epoch = 0 THEN 'its epoch is 0'
      WHEN c.sinks_failed = 1 THEN 'a sink failed'
      WHEN c.sinks_failed > 1 THEN c.sinks_failed || ' sinks failed'
      WHEN c.sinks_pending = 1 THEN 'a sink is still pending'
      WHEN c.sinks_pending > 1 THEN c.sinks_pending || ' sinks are still pending'
      ELSE f.messages
    END AS passed_over
  FROM {all_checkpoints} c
  LEFT JOIN faults f ON f.stream = c.stream AND f.checkpoint_key = c.checkpoint_key
  WHERE c.status IN ('committed', 'prepared')
),
ranked AS (
  SELECT
    *,
    IF(
      passed_over IS NULL,
      count(IF(passed_over IS NULL, 1, NULL)) OVER (PARTITION BY stream ORDER BY checkpoint_key DESC),
      NULL
    ) AS recovery_rank
  FROM judged
)
SELECT
  stream,
  checkpoint_id,
  checkpoint_key,
  passed_over IS NULL AS eligible,
  CASE
    WHEN passed_over IS NOT NULL THEN passed_over
    WHEN recovery_rank = 1 THEN 'recovery would choose it'
    ELSE 'recovery would choose it if ' || (recovery_rank - 1) || ' newer were bad'
  END AS reason,
  recovery_rank,
  epoch,
  saved_at,
  age_seconds
FROM ranked
