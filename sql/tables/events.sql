-- Grain: one row per event, append-only. An audit trail; no decision reads it, except to keep more.
-- Run by: CheckpointCatalog.create.
CREATE TABLE IF NOT EXISTS {table} (
  stream STRING NOT NULL COMMENT 'the stream it is about',
  checkpoint_key STRING COMMENT 'the checkpoint it is about, if it is about one',
  event STRING NOT NULL COMMENT 'verified, drilled, folded or swept',
  at TIMESTAMP_LTZ NOT NULL COMMENT 'when',
  actor STRING COMMENT 'who',
  details STRING COMMENT 'measurements and findings, as JSON'
)
USING DELTA
PARTITIONED BY (stream)
COMMENT 'checkpoint-catalog: audit and measurements'
TBLPROPERTIES (
  'checkpoint_catalog.format' = '{format}',
  'delta.dataSkippingStatsColumns' = 'checkpoint_key,event,at',
  'delta.randomizeFilePrefixes' = 'true',
  'delta.deletedFileRetentionDuration' = 'interval 2 days',
  'delta.logRetentionDuration' = 'interval 2 days',
  'delta.checkpointInterval' = '50',
  'delta.enableDeletionVectors' = 'false',
  'delta.columnMapping.mode' = 'none',
  'delta.enableRowTracking' = 'false',
  'delta.enableInCommitTimestamps' = 'false',
  'delta.enableTypeWidening' = 'false',
  'delta.enableChangeDataFeed' = 'false',
  'delta.checkpointPolicy' = 'classic',
  'delta.appendOnly' = 'false'
)
