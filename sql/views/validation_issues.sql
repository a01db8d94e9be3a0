-- Grain: one row per finding about a live checkpoint, from metadata alone: no bytes of artifacts are read.
-- Sources: all_checkpoints, artifact_inventory, artifacts (without the bytes), delta_chains. Run by: people, recovery_candidates, stream_health. It reads several tables one after the other, so beside a
-- clean-up it may show a fault that is none: CheckpointCatalog.validate asks again before it says so.
-- Columns:
--   stream: the producer
--   checkpoint_id: the id as people see it, an integer or a UUIDv7
--   checkpoint_key: the id as text that sorts by age
--   rule: the rule that it breaks; catalog.validation.RULES says what each means
--   severity: integrity (do not restore from it) or warning
--   message: what was found
WITH kept AS (
  SELECT
    stream,
    checkpoint_key,
    array_sort(collect_list(struct(path, sha256, bytes, complete))) AS artifacts
  FROM {artifact_inventory}
  GROUP BY stream, checkpoint_key
),
lost AS (
  SELECT b.stream, b.checkpoint_key, b.attempt, max(b.held_key) AS held_key
  FROM {artifacts} b
  LEFT ANTI JOIN {artifacts} h
    ON h.stream = b.stream AND h.checkpoint_key = b.held_key AND h.attempt = b.held_attempt
    AND h.chunk_sha256 = b.chunk_sha256 AND h.held_attempt IS NULL
  WHERE b.held_attempt IS NOT NULL
  GROUP BY b.stream, b.checkpoint_key, b.attempt
),
parsed AS (
  SELECT
    c.stream,
    c.checkpoint_id,
    c.checkpoint_key,
    c.format,
    coalesce(sha2(c.manifest_text, 256) = c.manifest_sha256, FALSE) AS readable,
    from_json(
      c.manifest_text,
      'version DECIMAL(20,0), checkpoint_id STRING, epoch DECIMAL(20,0), timestamp_ms DECIMAL(20,0), sequence STRING,
       source_offsets MAP<STRING, STRING>, source_names ARRAY<STRING>, sink_epochs MAP<STRING, STRING>,
       sink_commit_statuses MAP<STRING, STRING>, vnode_count INT, state_checksum STRING, state_b64 STRING,
       operator_states MAP<STRING, STRUCT<state_b64: STRING, external: BOOLEAN>>,
       operators MAP<STRING, STRUCT<partitions: ARRAY<STRUCT<path: STRING, size_bytes: DECIMAL(20,0), sha256: STRING>>>>,
       operator_handles MAP<STRING, MAP<STRING, STRUCT<kind: STRING, path: STRING, size_bytes: DECIMAL(20,0), sha256: STRING, state_b64: STRING>>>',
      -- Inline state is one text; without this one above 20,000,000 characters is no JSON.
      map('maxStringLen', '2147483647')
    ) AS f,
    c.artifact_count,
    max(IF(c.is_latest, c.vnode_count, NULL)) OVER (PARTITION BY c.stream) AS expected_vnodes,
    c.revisions,
    c.revision,
    c.first_manifest_text,
    c.content_sha256,
    coalesce(from_json(c.details, 'missing ARRAY<STRING>').missing, array()) AS never_written,
    coalesce(k.artifacts, array()) AS artifacts,
    transform(c.folds, d -> named_struct('path', d.path, 'size_bytes', d.size_bytes, 'sha256', d.sha256)) AS folds,
    l.held_key AS lost_holder
  FROM {all_checkpoints} c
  LEFT JOIN kept k ON k.stream = c.stream AND k.checkpoint_key = c.checkpoint_key
  LEFT JOIN lost l ON l.stream = c.stream AND l.checkpoint_key = c.checkpoint_key AND l.attempt = c.attempt
  WHERE c.status IN ('committed', 'prepared') AND NOT c.purged_since
),
-- Inline states by operator name, as the checksum of seed 004 covers them; and the artifacts that a manifest lists.
unfolded AS (
  SELECT
    *,
    readable AND f.version IS NOT NULL AND coalesce(f.checkpoint_id, f.sequence) IS NOT NULL
      AND (format = 'state-v1' OR (f.epoch IS NOT NULL AND f.timestamp_ms IS NOT NULL)) AS is_manifest,
    filter(
      array_sort(map_entries(coalesce(f.operator_states, map()))),
      e -> NOT coalesce(e.value.external, FALSE) AND e.value.state_b64 IS NOT NULL
    ) AS inline,
    exists(map_values(coalesce(f.operator_states, map())), o -> coalesce(o.external, FALSE)) AS has_external,
    flatten(transform(map_values(coalesce(f.operator_handles, map())), o -> map_values(o))) AS handles,
    concat(
      flatten(transform(map_values(coalesce(f.operators, map())), o -> coalesce(o.partitions, array()))),
      transform(
        filter(handles, h -> h.kind = 'artifact'),
        h -> named_struct('path', h.path, 'size_bytes', h.size_bytes, 'sha256', h.sha256)
      )
    ) AS entries,
    transform(artifacts, a -> a.path) AS paths
  FROM parsed
),
hashed AS (
  SELECT
    *,
    IF(
      size(inline) = 0,
      NULL,
      sha2(array_join(transform(inline, e -> e.key || CAST(X'00' AS STRING) || e.value.state_b64 || CAST(X'00' AS STRING)), ''), 256)
    ) AS inline_sha256,
    -- Artifacts besides those that the manifest lists: the state of seed 004.
    IF(format = 'manifest-v1', artifact_count - size(array_distinct(transform(entries, e -> e.path))), 0) AS state_count
  FROM unfolded
),
-- What it was saved with.
originals AS (
  SELECT
    *,
    CASE
      WHEN format = 'manifest-v2' THEN array_except(transform(entries, e -> e.path), never_written)
      WHEN format = 'state-v1' THEN IF(f.state_b64 IS NULL, array('checkpoint-state.bin'), array())
      ELSE concat(transform(entries, e -> e.path), IF(state_count > 0 OR has_external, array('state.bin'), array()))
    END AS saved_paths
  FROM hashed
),
expecting AS (
  SELECT
    * EXCEPT (entries),
    concat(entries, folds) AS entries,
    concat(saved_paths, transform(folds, d -> d.path)) AS expected
  FROM originals
),
found AS (
  SELECT
    stream,
    checkpoint_id,
    checkpoint_key,
    IF(
      NOT is_manifest,
      array(named_struct('rule', 'manifest_unreadable', 'severity', 'integrity', 'message', 'the manifest is not what was saved, or is no manifest')),
      array(
        IF(
          coalesce(f.checkpoint_id, f.sequence) <> checkpoint_id,
          named_struct('rule', 'id_mismatch', 'severity', 'integrity', 'message', 'the manifest is of checkpoint ' || coalesce(f.checkpoint_id, f.sequence)),
          NULL
        ),
        IF(
          format = 'manifest-v1' AND checkpoint_id = '0',
          named_struct('rule', 'id_zero', 'severity', 'integrity', 'message', 'checkpoint_id is 0'),
          NULL
        ),
        IF(
          format <> 'state-v1' AND f.epoch = 0,
          named_struct('rule', 'epoch_zero', 'severity', 'integrity', 'message', 'epoch is 0'),
          NULL
        ),
        IF(
          exists(inline, e -> try_to_binary(e.value.state_b64, 'base64') IS NULL)
            OR (f.state_b64 IS NOT NULL AND try_to_binary(f.state_b64, 'base64') IS NULL)
            OR exists(
              filter(handles, h -> h.kind = 'inline'),
              h -> coalesce(sha2(try_to_binary(h.state_b64, 'base64'), 256) <> h.sha256 OR length(try_to_binary(h.state_b64, 'base64')) <> h.size_bytes, TRUE)
            ),
          named_struct('rule', 'inline_state_unreadable', 'severity', 'integrity', 'message', 'inline state is not base64, or not what its handle says'),
          NULL
        ),
        IF(
          format = 'manifest-v1' AND state_count > 0 AND f.state_checksum IS NULL,
          named_struct('rule', 'checksum_missing', 'severity', 'integrity', 'message', 'the state has no checksum'),
          NULL
        ),
        IF(
          format = 'manifest-v1' AND state_count = 0 AND NOT has_external AND f.state_checksum IS NOT NULL
            AND inline_sha256 IS NOT NULL AND f.state_checksum <> inline_sha256,
          named_struct('rule', 'checksum_mismatch', 'severity', 'integrity', 'message', 'the inline state is not what was saved'),
          NULL
        ),
        IF(
          size(array_except(expected, paths)) > 0
            OR (format = 'manifest-v1' AND state_count = 0 AND NOT has_external AND f.state_checksum IS NOT NULL AND inline_sha256 IS NULL),
          named_struct('rule', 'state_missing', 'severity', 'integrity', 'message', 'state data is missing: ' || coalesce(get(array_except(expected, paths), 0), 'state.bin')),
          NULL
        ),
        IF(
          exists(artifacts, a -> NOT a.complete AND array_contains(expected, a.path)),
          named_struct('rule', 'chunk_missing', 'severity', 'integrity', 'message', 'an artifact is incomplete: ' || filter(artifacts, a -> NOT a.complete AND array_contains(expected, a.path))[0].path),
          NULL
        ),
        IF(
          lost_holder IS NOT NULL,
          named_struct('rule', 'holder_missing', 'severity', 'integrity', 'message', 'bytes that checkpoint ' || lost_holder || ' holds for it are gone'),
          NULL
        ),
        IF(
          format = 'manifest-v1' AND state_count > 0 AND inline_sha256 IS NULL
            AND exists(artifacts, a -> a.path = 'state.bin' AND a.complete AND a.sha256 <> f.state_checksum),
          named_struct('rule', 'checksum_mismatch', 'severity', 'integrity', 'message', 'the state is not the one that the manifest''s checksum is of'),
          NULL
        ),
        IF(
          exists(entries, e -> exists(artifacts, a -> a.path = e.path AND a.complete AND (a.bytes <> e.size_bytes OR a.sha256 <> e.sha256))),
          named_struct('rule', 'artifact_mismatch', 'severity', 'integrity', 'message', 'an artifact is not the one that the manifest lists'),
          NULL
        ),
        IF(
          size(array_except(expected, paths)) = 0 AND NOT exists(artifacts, a -> NOT a.complete AND array_contains(expected, a.path))
            AND content_sha256 <> sha2(
              array_join(
                concat(
                  array(first_manifest_text),
                  transform(
                    filter(artifacts, a -> array_contains(saved_paths, a.path)),
                    a -> a.path || CAST(X'00' AS STRING) || a.sha256
                  )
                ),
                '\n'
              ),
              256
            ),
          named_struct('rule', 'content_mismatch', 'severity', 'integrity', 'message', 'the manifest and the hashes of its artifacts are not those that were saved'),
          NULL
        ),
        IF(
          revisions <> revision + 1,
          named_struct('rule', 'revision_gap', 'severity', 'integrity', 'message', 'it has ' || revisions || ' revisions up to number ' || revision),
          NULL
        ),
        IF(f.version = 0, named_struct('rule', 'version_zero', 'severity', 'warning', 'message', 'version is 0'), NULL),
        IF(
          format <> 'state-v1' AND f.timestamp_ms = 0,
          named_struct('rule', 'timestamp_zero', 'severity', 'warning', 'message', 'timestamp_ms is 0'),
          NULL
        ),
        IF(
          size(coalesce(f.sink_commit_statuses, map())) > 0
            AND size(array_except(map_keys(coalesce(f.sink_epochs, map())), map_keys(f.sink_commit_statuses))) > 0,
          named_struct('rule', 'sink_without_status', 'severity', 'warning', 'message', 'a sink has an epoch but no commit status: ' || array_except(map_keys(f.sink_epochs), map_keys(f.sink_commit_statuses))[0]),
          NULL
        ),
        IF(
          format = 'manifest-v1' AND size(coalesce(f.source_names, array())) > 0
            AND size(array_except(map_keys(coalesce(f.source_offsets, map())), f.source_names)) > 0,
          named_struct('rule', 'source_unknown', 'severity', 'warning', 'message', 'a source has offsets but is not in source_names: ' || array_except(map_keys(f.source_offsets), f.source_names)[0]),
          NULL
        ),
        IF(
          format = 'manifest-v1' AND coalesce(f.vnode_count, 0) = 0,
          named_struct('rule', 'vnode_count_legacy', 'severity', 'warning', 'message', 'vnode_count is 0: a legacy manifest'),
          NULL
        ),
        IF(
          format = 'manifest-v1' AND f.vnode_count <> 0 AND f.vnode_count <> expected_vnodes,
          named_struct('rule', 'vnode_count_mismatch', 'severity', 'warning', 'message', 'vnode_count is ' || f.vnode_count || ', that of the latest is ' || expected_vnodes),
          NULL
        ),
        IF(
          size(never_written) > 0,
          named_struct('rule', 'never_written', 'severity', 'warning', 'message', 'it cannot be promoted, because this was never written: ' || never_written[0]),
          NULL
        )
      )
    ) AS issues
  FROM expecting
)
SELECT stream, checkpoint_id, checkpoint_key, issue.rule AS rule, issue.severity AS severity, issue.message AS message
FROM found LATERAL VIEW explode(filter(issues, i -> i IS NOT NULL)) AS issue
UNION ALL
SELECT
  stream, checkpoint_id, checkpoint_key, 'chain_broken', 'integrity',
  'the chain of ' || max(operator) || ' partition ' || max(partition) || ' is broken'
FROM {delta_chains}
WHERE NOT whole
GROUP BY stream, checkpoint_id, checkpoint_key
