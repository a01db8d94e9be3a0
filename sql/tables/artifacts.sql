-- Grain: one row per chunk of an artifact, per attempt to write it. Immutable.
-- Run by: CheckpointCatalog.create.
CREATE TABLE IF NOT EXISTS {table} (
  stream STRING NOT NULL COMMENT 'the stream of its checkpoint',
  checkpoint_key STRING NOT NULL COMMENT 'the checkpoint it was written for',
  attempt STRING NOT NULL COMMENT 'one writer''s writes to one id; the checkpoint names the attempt that counts',
  path STRING NOT NULL COMMENT 'the artifact''s name within its checkpoint',
  kind STRING NOT NULL COMMENT 'snapshot (complete), delta (relative to the parent), state (sidecar) or source (a file of where it was imported from)',
  operator STRING COMMENT 'the operator whose state it is',
  partition BIGINT COMMENT 'the operator''s partition',
  scope STRING COMMENT 'exclusive, or shared with later checkpoints',
  cutting STRING COMMENT 'how it is cut into chunks: fixed (4 MiB), or content; readers need not know',
  hashing STRING COMMENT 'what artifact_sha256 is over: bytes, or chunks (their hashes)',
  staged_at TIMESTAMP_LTZ NOT NULL COMMENT 'when its writer began; clean-up waits a grace period from here',
  chunk_no INT NOT NULL COMMENT 'from 0',
  chunk_count INT COMMENT 'how many there are; on the last chunk only, as all totals: a stream''s end is not known before',
  chunk_size INT NOT NULL COMMENT 'bytes in this chunk',
  chunk_sha256 STRING NOT NULL COMMENT 'SHA-256 of this chunk',
  artifact_size DECIMAL(20,0) COMMENT 'bytes of the whole artifact; on the last chunk only',
  artifact_sha256 STRING COMMENT 'SHA-256 of the whole artifact, or of its chunks'' hashes in order; on the last chunk only',
  held_key STRING COMMENT 'borrowed: the checkpoint key of the row that has the bytes',
  held_attempt STRING COMMENT 'borrowed: the attempt of the row that has the bytes',
  held_no INT COMMENT 'borrowed: the number of that row''s chunk, which narrows the search for it',
  via STRING COMMENT 'borrowed: the checkpoint it was borrowed through',
  data BINARY COMMENT 'the bytes; NULL when borrowed'
)
USING DELTA
PARTITIONED BY (stream)
COMMENT 'checkpoint-catalog: snapshot, delta and state artifacts in chunks'
TBLPROPERTIES (
  'checkpoint_catalog.format' = '{format}',
  'delta.dataSkippingStatsColumns' = 'checkpoint_key,attempt,chunk_no',
  'delta.randomizeFilePrefixes' = 'true',
  -- Undo needs the trash, not time travel, so deleted bytes need not be kept for long: maintenance deletes them
  -- after half of this, because what is deleted later is no longer named in the log.
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
