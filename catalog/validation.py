"""What can be wrong with a checkpoint: named rules, each a warning or an integrity failure. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from catalog.errors import InvalidInputError
from catalog.manifest import CheckpointManifest

Severity = Literal["warning", "integrity"]


@dataclass(frozen=True, slots=True)
class Issue:
    """One finding."""

    severity: Severity
    rule: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """What validation found; valid means no integrity failure."""

    checkpoint_id: int | str
    issues: tuple[Issue, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether it can be restored from."""
        return not self.failures

    @property
    def failures(self) -> tuple[Issue, ...]:
        """The integrity failures."""
        return tuple(issue for issue in self.issues if issue.severity == "integrity")

    @property
    def warnings(self) -> tuple[Issue, ...]:
        """What is odd but harmless."""
        return tuple(issue for issue in self.issues if issue.severity == "warning")


def failure(rule: str, message: str) -> Issue:
    """Return an integrity failure."""
    return Issue("integrity", rule, message)


def manifest_issues(manifest: CheckpointManifest, vnode_count: int) -> list[Issue]:
    """Return what a manifest's own fields show."""
    return list(_failures(manifest)) + [Issue("warning", rule, text) for rule, text in _warnings(manifest, vnode_count)]


def _failures(manifest: CheckpointManifest) -> Iterable[Issue]:
    if manifest.checkpoint_id == 0:
        yield failure("id_zero", "checkpoint_id is 0")
    if manifest.epoch == 0:
        yield failure("epoch_zero", "epoch is 0")
    for name, operator in manifest.operator_states.items():
        try:
            operator.inline_state(name)
        except InvalidInputError as error:
            yield failure("inline_state_unreadable", str(error))


def _warnings(manifest: CheckpointManifest, vnode_count: int) -> Iterable[tuple[str, str]]:
    if manifest.version == 0:
        yield "version_zero", "version is 0"
    if manifest.timestamp_ms == 0:
        yield "timestamp_zero", "timestamp_ms is 0"
    if manifest.sink_commit_statuses:
        for sink in sorted(set(manifest.sink_epochs) - set(manifest.sink_commit_statuses)):
            yield "sink_without_status", f"sink {sink!r} has an epoch but no commit status"
    if manifest.source_names:
        for source in sorted(set(manifest.source_offsets) - set(manifest.source_names)):
            yield "source_unknown", f"source {source!r} has offsets but is not in source_names"
    if manifest.vnode_count == 0:
        yield "vnode_count_legacy", "vnode_count is 0: a legacy manifest"
    elif manifest.vnode_count != vnode_count:
        yield "vnode_count_mismatch", f"vnode_count is {manifest.vnode_count}, this store expects {vnode_count}"
