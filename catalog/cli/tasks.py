"""The work of the scheduled jobs and of the commands that do the same by hand: done, and told as data and as text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from catalog.catalog import CheckpointCatalog
from catalog.cli.frame import ExitCode, sentence
from catalog.cli.job import Done, chosen_streams, progressing
from catalog.cli.output import Output, size, visible
from catalog.errors import CatalogError
from catalog.keys import shown
from catalog.policies import Retention
from catalog.prune import CleanUp, RetentionReport
from catalog.tables.port import Merging
from catalog.verify import Depth, Sample


def verify(
    catalog: CheckpointCatalog,
    out: Output,
    *,
    streams: Sequence[str] | None,
    depth: Depth,
    sample: Sample | None,
    dry_run: bool,
) -> Done:
    """Look at live checkpoints, and record what was found unless it is a dry run."""
    wanted = chosen_streams(catalog, streams)
    with progressing(out, "verifying …") as progress:
        report = catalog.validate(wanted, depth=depth, sample=sample, progress=progress, record=not dry_run)
    data = {
        "valid": report.valid,
        "depth": report.depth,
        "checked": report.checked,
        "of_checkpoints": report.of_checkpoints,
        "bytes": report.bytes,
        "seconds": report.seconds,
        "issues": [
            {
                "stream": name,
                "checkpoint_id": result.checkpoint_id,
                "severity": issue.severity,
                "rule": issue.rule,
                "message": issue.message,
            }
            for name, result in report.results
            for issue in result.issues
        ],
    }
    return Done(data, report.explain(), ExitCode.OK if report.valid else ExitCode.FAULTS)


def fold(
    catalog: CheckpointCatalog, out: Output, *, streams: Sequence[str] | None, min_links: int, dry_run: bool
) -> Done:
    """Turn long chains of deltas into one snapshot each."""
    wanted = chosen_streams(catalog, streams)
    with progressing(out, "folding …") as progress:
        report = catalog.fold_chains(wanted, min_links=min_links, dry_run=dry_run, progress=progress)
    return Done(asdict(report), report.explain(), ExitCode.FAULTS if report.failed else ExitCode.OK)


def compact(catalog: CheckpointCatalog, out: Output, *, keep_removed: timedelta | None, dry_run: bool) -> Done:
    """Merge small files, shorten the logs and free the disk."""
    with out.working("compacting …") as tell:

        def show(far: Merging) -> None:
            tell(f"{far.table}: {size(far.bytes)} of {size(far.of_bytes)}")

        report = catalog.compact(keep_removed=keep_removed, dry_run=dry_run, progress=show)
    return Done(asdict(report), report.explain(), ExitCode.FAULTS if report.problems else ExitCode.OK)


def drill(
    catalog: CheckpointCatalog,
    out: Output,
    *,
    streams: Sequence[str] | None,
    sample: Sample | None,
    scratch: str | None,
    dry_run: bool,
) -> Done:
    """Restore checkpoints into scratch space, and record how it went unless it is a dry run."""
    wanted = chosen_streams(catalog, streams)
    with progressing(out, "restoring …") as progress:
        report = catalog.run_drills(wanted, sample=sample, scratch=scratch, dry_run=dry_run, progress=progress)
    data = {**asdict(report), "failed": len(report.failed)}
    return Done(data, report.explain(), ExitCode.FAULTS if report.failed else ExitCode.OK)


# -- letting go --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LetGo:
    """What went, or would go, of several streams."""

    report: RetentionReport
    cleaned: tuple[CleanUp, ...]
    errors: dict[str, str]
    """Why a stream was left alone."""

    @property
    def code(self) -> ExitCode:
        """That it is only partly done, if a stream was left alone."""
        return ExitCode.FAULTS if self.errors else ExitCode.OK

    @property
    def cleaned_lines(self) -> list[str]:
        """What was purged and swept, and what was left alone, for people."""
        lines = [_told(one, self.report.dry_run) for one in self.cleaned]
        return [
            *filter(None, lines),
            *(f"left alone: {visible(shown(name))}: {error}" for name, error in self.errors.items()),
        ]


def let_go(
    catalog: CheckpointCatalog,
    out: Output,
    policies: Sequence[Retention],
    *,
    streams: Sequence[str],
    grace: timedelta | None,
    dry_run: bool,
) -> LetGo:
    """Trash what no policy keeps, purge and sweep, stream by stream: what stops one is no reason to leave the others.

    Args:
        catalog: the catalog.
        out: where it says how far it is.
        policies: what is kept; without any, nothing goes to the trash.
        streams: of these.
        grace: what was staged less than this ago is not swept; None purges and sweeps nothing.
        dry_run: only say what would go.
    """
    reports: list[RetentionReport] = []
    cleaned: list[CleanUp] = []
    errors: dict[str, str] = {}
    with out.working("letting go …") as tell:
        for name in streams:
            tell(name)
            try:
                reports.append(catalog.apply_retention(policies, [name], dry_run=dry_run))
                if grace is not None:
                    cleaned += catalog.clean_up([name], grace=grace, dry_run=dry_run)
            except CatalogError as error:
                errors[name] = sentence(error)
    report = RetentionReport(
        tuple(one for some in reports for one in some.planned),
        {name: until for some in reports for name, until in some.undo_until.items()},
        dry_run,
    )
    return LetGo(report, tuple(cleaned), errors)


def retain(
    catalog: CheckpointCatalog,
    out: Output,
    policies: Sequence[Retention],
    *,
    streams: Sequence[str],
    grace: timedelta | None,
    dry_run: bool,
) -> Done:
    """Apply retention and clean up; see `let_go`."""
    done = let_go(catalog, out, policies, streams=streams, grace=grace, dry_run=dry_run)
    data: dict[str, Any] = {
        **asdict(done.report), "cleaned": [asdict(one) for one in done.cleaned], "errors": done.errors
    }  # fmt: skip
    told = done.report.explain() if policies else "no policies were given (--policies FILE): nothing goes to the trash"
    return Done(data, "\n".join([told, *done.cleaned_lines]), done.code)


def sweep(
    catalog: CheckpointCatalog, out: Output, *, streams: Sequence[str] | None, grace: timedelta, dry_run: bool
) -> Done:
    """Purge what is past its undo window, and delete the bytes that nothing needs any more."""
    wanted = chosen_streams(catalog, streams, staged=True)
    done = let_go(catalog, out, [], streams=wanted, grace=grace, dry_run=dry_run)
    data = {"cleaned": [asdict(one) for one in done.cleaned], "errors": done.errors, "dry_run": dry_run}
    return Done(data, "\n".join(done.cleaned_lines or ["nothing to purge or to sweep"]), done.code)


def _told(one: CleanUp, dry_run: bool) -> str:
    swept = one.swept
    if not (one.purged or swept.chunks):
        return ""
    would = "would be " if dry_run else ""
    orphans = f" {swept.orphans} of them orphaned," if swept.orphans else ""
    attempts = swept.orphans + swept.purged
    return (
        f"{visible(shown(one.stream))}: {len(one.purged)} checkpoints {would}purged, "
        f"{attempts} attempts {would}swept,{orphans} {swept.chunks} chunks"
    )
