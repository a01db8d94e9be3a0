-- Grain: one row per live checkpoint, source and position in it; a source without positions has one row.
-- Sources: checkpoint_manifests. Run by: people who look for the checkpoint at an offset.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   kind: source, or table for the position of a reference table
--   source: the name of the source
--   position: what the offset is of, such as a partition; NULL where a source has one offset only
--   offset_text: the offset as it is stored
--   offset_number: the offset as a number, NULL if it is no whole one of up to 38 digits
WITH sources AS (
  SELECT m.stream, m.checkpoint_id, m.checkpoint_key, m.format, 'source' AS kind, s.key AS source, s.value AS value
  FROM {checkpoint_manifests} m, LATERAL variant_explode(m.manifest:source_offsets) s
  UNION ALL
  SELECT m.stream, m.checkpoint_id, m.checkpoint_key, m.format, 'table' AS kind, t.key AS source, t.value AS value
  FROM {checkpoint_manifests} m, LATERAL variant_explode(m.manifest:table_offsets) t
),
positions AS (
  SELECT
    s.stream,
    s.checkpoint_id,
    s.checkpoint_key,
    s.kind,
    s.source,
    p.key AS position,
    try_variant_get(IF(s.format = 'state-v1', s.value, p.value), '$', 'string') AS offset_text
  FROM sources s, LATERAL variant_explode_outer(IF(s.format = 'state-v1', NULL, s.value:offsets)) p
)
SELECT
  stream,
  checkpoint_id,
  checkpoint_key,
  kind,
  source,
  position,
  offset_text,
  IF(offset_text RLIKE '^-?[0-9]{1,38}$', try_cast(offset_text AS DECIMAL(38, 0)), NULL) AS offset_number
FROM positions
