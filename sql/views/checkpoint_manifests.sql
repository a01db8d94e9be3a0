-- Grain: one row per live checkpoint, with its manifest's content.
-- Sources: all_checkpoints. Run by: people, other views.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   format: manifest-v1, manifest-v2 or state-v1
--   updated_at: when this content was written
--   readable: whether the text is what was saved, and can be taken apart here
--   manifest: the content as VARIANT, so that manifest:source_offsets.kafka reaches into it; NULL if it is not JSON, or has a text of more than 20,000,000 characters
--   manifest_text: the text as it is stored
SELECT
  stream,
  checkpoint_id,
  checkpoint_key,
  format,
  updated_at,
  coalesce(sha2(manifest_text, 256) = manifest_sha256 AND try_parse_json(manifest_text) IS NOT NULL, FALSE) AS readable,
  try_parse_json(manifest_text) AS manifest,
  manifest_text
FROM {all_checkpoints}
WHERE status IN ('committed', 'prepared')
