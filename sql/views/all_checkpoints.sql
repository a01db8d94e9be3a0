-- Grain: one row per checkpoint id that has a row, whatever became of it: its revisions, folded.
-- Sources: checkpoints. Run by: the other views.
-- Columns:
--   stream: the producer; '<empty prefix>' is the stream with the empty name
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   format: manifest-v1, manifest-v2 or state-v1; empty if the stream was never saved to
--   status: committed, prepared (saved, not promoted), trashed, purged, or abandoned (never saved, id closed)
--   is_latest: whether it is the highest committed id of its stream
--   revision: its newest revision
--   saved_at: when it was saved
--   changed_at: when its newest revision was made
--   changed_by: who made its newest revision
--   age_seconds: seconds since it was saved
--   created_at: when its producer says that it was made
--   attempt: the attempt whose artifact rows belong to it
--   fold_attempts: further attempts, whose artifact rows are the snapshots that its chains were folded into
--   parent_key: key of the checkpoint that its deltas stand on, NULL if it is complete or all of them were folded
--   epoch: exactly-once epoch
--   watermark: event-time watermark as the producer gave it
--   event_count: events processed (state-v1)
--   pipeline_hash: identity of the pipeline (manifest-v1)
--   vnode_count: virtual nodes (manifest-v1)
--   sinks_committed: sinks that have committed it
--   sinks_pending: sinks whose commit is not known yet
--   sinks_failed: sinks whose commit failed
--   artifact_count: how many artifacts it has
--   bytes: size of its artifacts; state that rides inline in the manifest is not counted
--   new_bytes: of these, what was written for it
--   shared_bytes: of these, what an earlier checkpoint already held
--   folded_bytes: size of the snapshots that its chains were folded into
--   pinned: whether a pin holds it now
--   pin_reason: why it is pinned; of several pins all reasons
--   pinned_by: who pinned it
--   pin_until: when the last of its pins expires, NULL if never
--   trash_reason: why it is in the trash, or was purged
--   trashed_at: when it was trashed
--   trashed_by: who trashed it
--   undo_until: until when it can be restored
--   revisions: how many revisions there are
--   updated_at: when its manifest was last written
--   manifest_sha256: SHA-256 of the manifest text
--   manifest_text: the manifest as it is stored
--   first_manifest_text: the manifest as it was saved
--   content_sha256: SHA-256 of the manifest as it was saved and of its artifacts' paths and hashes
--   details: further facts of the save, as JSON text
--   folds: what its chains were folded into
--   purged_since: whether it was purged after the moment that is looked at; never true of the present
WITH folded AS (
  SELECT
    stream,
    checkpoint_key,
    max(format) AS format,
    max(revision) AS revision,
    count(*) AS revisions,
    max(at) AS changed_at,
    max_by(actor, revision) AS changed_by,
    max_by(
      struct(at, attempt, parent, artifact_count, artifact_bytes, shared_bytes, content_sha256, details), revision
    ) FILTER (WHERE revision = 0 AND change IN ('saved', 'prepared')) AS origin,
    max_by(struct(parent), revision) FILTER (WHERE change = 'folded') AS fold,
    collect_list(
      struct(
        attempt,
        artifact_bytes,
        from_json(
          details,
          'folds ARRAY<STRUCT<operator: STRING, partition: BIGINT, path: STRING, size_bytes: DECIMAL(20,0), sha256: STRING>>'
        ).folds AS folds
      )
    ) FILTER (WHERE change = 'folded') AS foldings,
    max(manifest) FILTER (WHERE revision = 0) AS first_manifest_text,
    max_by(
      struct(
        at, created_at, epoch, watermark, event_count, pipeline_hash, vnode_count, sinks_committed, sinks_pending,
        sinks_failed, manifest_sha256
      ),
      revision
    ) FILTER (WHERE change IN ('saved', 'prepared', 'updated')) AS content,
    max_by(manifest, revision) FILTER (WHERE change IN ('saved', 'prepared', 'updated')) AS manifest_text,
    array_sort(
      collect_list(
        struct(
          revision,
          change,
          coalesce(get_json_object(details, '$.pin'), reason) AS name,
          reason,
          actor,
          until
        )
      ) FILTER (WHERE change IN ('pinned', 'unpinned'))
    ) AS pinnings,
    max_by(struct(change, reason, actor, until, at), revision) FILTER (WHERE change IN ('trashed', 'restored')) AS trash,
    max(reason) FILTER (WHERE change = 'purged') AS purge_reason,
    bool_or(change = 'purged') AS purged,
    bool_or(change = 'promoted' OR (change = 'saved' AND revision = 0)) AS committed
  FROM {checkpoints}
  GROUP BY stream, checkpoint_key
),
judged AS (
  SELECT
    *,
    CASE
      WHEN purged THEN 'purged'
      WHEN origin IS NULL THEN 'abandoned'
      WHEN trash.change = 'trashed' THEN 'trashed'
      WHEN committed THEN 'committed'
      ELSE 'prepared'
    END AS status,
    filter(
      pinnings,
      p -> p.change = 'pinned'
        AND (p.until IS NULL OR p.until > current_timestamp())
        AND NOT exists(pinnings, q -> q.revision > p.revision AND coalesce(q.name = p.name, TRUE))
    ) AS pins
  FROM folded
)
SELECT
  stream,
  {checkpoint_id} AS checkpoint_id,
  checkpoint_key,
  format,
  status,
  status = 'committed'
    AND checkpoint_key = max(IF(status = 'committed', checkpoint_key, NULL)) OVER (PARTITION BY stream) AS is_latest,
  revision,
  origin.at AS saved_at,
  changed_at,
  changed_by,
  timestampdiff(SECOND, origin.at, current_timestamp()) AS age_seconds,
  content.created_at AS created_at,
  origin.attempt AS attempt,
  transform(foldings, f -> f.attempt) AS fold_attempts,
  IF(fold IS NULL, origin.parent, fold.parent) AS parent_key,
  content.epoch AS epoch,
  content.watermark AS watermark,
  content.event_count AS event_count,
  content.pipeline_hash AS pipeline_hash,
  content.vnode_count AS vnode_count,
  content.sinks_committed AS sinks_committed,
  content.sinks_pending AS sinks_pending,
  content.sinks_failed AS sinks_failed,
  origin.artifact_count AS artifact_count,
  origin.artifact_bytes AS bytes,
  origin.artifact_bytes - origin.shared_bytes AS new_bytes,
  origin.shared_bytes AS shared_bytes,
  aggregate(foldings, CAST(0 AS DECIMAL(20,0)), (total, f) -> CAST(total + f.artifact_bytes AS DECIMAL(20,0))) AS folded_bytes,
  size(pins) > 0 AS pinned,
  IF(size(pins) > 0, array_join(transform(pins, p -> p.reason), '; '), NULL) AS pin_reason,
  IF(size(pins) > 0, array_join(array_distinct(transform(pins, p -> p.actor)), ', '), NULL) AS pinned_by,
  IF(exists(pins, p -> p.until IS NULL), NULL, array_max(transform(pins, p -> p.until))) AS pin_until,
  IF(trash.change = 'trashed', trash.reason, purge_reason) AS trash_reason,
  IF(trash.change = 'trashed', trash.at, NULL) AS trashed_at,
  IF(trash.change = 'trashed', trash.actor, NULL) AS trashed_by,
  IF(trash.change = 'trashed', trash.until, NULL) AS undo_until,
  revisions,
  content.at AS updated_at,
  content.manifest_sha256 AS manifest_sha256,
  manifest_text,
  first_manifest_text,
  origin.content_sha256 AS content_sha256,
  origin.details AS details,
  flatten(transform(foldings, f -> coalesce(f.folds, array()))) AS folds,
  FALSE AS purged_since
FROM judged
