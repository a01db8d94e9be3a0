-- Grain: one row per (stream, checkpoint_key, revision), never changed. The only truth about what exists.
-- Run by: CheckpointCatalog.create, as the last of the three tables: a place without it is not yet a catalog.
CREATE TABLE IF NOT EXISTS {table} (
  stream STRING NOT NULL COMMENT 'one producer''s checkpoints; the unit of isolation, order and fencing',
  checkpoint_key STRING NOT NULL COMMENT 'the id as text that sorts by age: 20 digits, or a UUIDv7',
  revision INT NOT NULL COMMENT '0 is the save; every later change of its life is the next one',
  change STRING NOT NULL COMMENT 'saved, prepared, promoted, updated, pinned, unpinned, folded, trashed, restored, purged, abandoned',
  format STRING NOT NULL COMMENT 'manifest-v1, manifest-v2 or state-v1; one per stream',
  insert_id STRING NOT NULL COMMENT 'by which a writer recognizes its own row after an unknown outcome',
  at TIMESTAMP_LTZ NOT NULL COMMENT 'when, later than the at of every row it stands on',
  actor STRING COMMENT 'who made the change',
  reason STRING COMMENT 'why',
  until TIMESTAMP_LTZ COMMENT 'end of the undo window (trashed), or expiry (pinned)',
  attempt STRING COMMENT 'whose artifact rows belong to it (saved, prepared, folded), or are given up (abandoned)',
  parent STRING COMMENT 'key of the checkpoint that its deltas stand on; NULL when it is complete',
  epoch DECIMAL(20,0) COMMENT 'exactly-once epoch',
  created_at TIMESTAMP_LTZ COMMENT 'the manifest''s own creation time',
  watermark DECIMAL(20,0) COMMENT 'event-time watermark as the producer gave it',
  event_count DECIMAL(20,0) COMMENT 'events processed (state-v1)',
  pipeline_hash DECIMAL(20,0) COMMENT 'identity of the pipeline (manifest-v1)',
  vnode_count INT COMMENT 'virtual nodes (manifest-v1); 0 is a legacy manifest',
  sinks_committed INT COMMENT 'sinks that have committed it',
  sinks_pending INT COMMENT 'sinks whose commit is not known yet',
  sinks_failed INT COMMENT 'sinks whose commit failed',
  artifact_count INT COMMENT 'artifacts of the attempt',
  artifact_bytes DECIMAL(20,0) COMMENT 'their size in bytes',
  shared_bytes DECIMAL(20,0) COMMENT 'of these, what an earlier checkpoint already held',
  manifest_sha256 STRING COMMENT 'SHA-256 of the manifest text',
  content_sha256 STRING COMMENT 'SHA-256 of the manifest and of its artifacts'' paths and hashes: equal means the same content',
  details STRING COMMENT 'further facts of the change, as JSON',
  manifest STRING COMMENT 'canonical JSON; on saved, prepared and updated'
)
USING DELTA
PARTITIONED BY (stream)
COMMENT 'checkpoint-catalog: manifests and every change of their life'
TBLPROPERTIES (
  'checkpoint_catalog.format' = '{format}',
  -- Statistics where queries narrow; long texts must not have any.
  'delta.dataSkippingStatsColumns' = 'checkpoint_key,revision,change,format',
  -- Data files go to short random folders: a stream's name may be longer than a file system's names.
  'delta.randomizeFilePrefixes' = 'true',
  -- Time travel reaches half as far as these once files are tidied away, and at most 1,000 versions where the native
  -- engine commits to a local disk: every log entry, and every file that is gone but remembered, makes every commit a
  -- little slower.
  'delta.deletedFileRetentionDuration' = 'interval 7 days',
  'delta.logRetentionDuration' = 'interval 7 days',
  'delta.checkpointInterval' = '50',
  -- Neither engine may meet a feature that the other one cannot write. Said here, because else a session's defaults
  -- (spark.databricks.delta.properties.defaults) decide.
  'delta.enableDeletionVectors' = 'false',
  'delta.columnMapping.mode' = 'none',
  'delta.enableRowTracking' = 'false',
  'delta.enableInCommitTimestamps' = 'false',
  'delta.enableTypeWidening' = 'false',
  'delta.enableChangeDataFeed' = 'false',
  'delta.checkpointPolicy' = 'classic',
  'delta.appendOnly' = 'false'
)
