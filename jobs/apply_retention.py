"""`ckpt-retain`: trash what no policy keeps, purge what is past its undo window, sweep what nothing needs."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

from catalog.catalog import CheckpointCatalog
from catalog.cli.frame import DebugOption, ExitCode, OutputOption, running, sentence
from catalog.cli.job import (
    Done,
    DryRunOption,
    EngineName,
    EngineOption,
    EntryPoint,
    PlaceArgument,
    PoliciesOption,
    StreamOption,
    chosen_streams,
    finish,
    open_catalog,
)
from catalog.cli.output import Output, OutputFormat
from catalog.errors import CatalogError, InvalidInputError
from catalog.policies import Retention, read_policies, span
from catalog.prune import CleanUp, RetentionReport
from catalog.sweep import ORPHAN_GRACE

NAME = "ckpt-retain"


def span_argument(text: str) -> timedelta:
    """Return the length of time in an argument."""
    try:
        return span(text)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error)) from error


def command(
    place: PlaceArgument,
    policies: PoliciesOption = None,
    engine: EngineOption = EngineName.SPARK,
    stream: StreamOption = None,
    trash_only: Annotated[bool, typer.Option("--trash-only", help="Purge and sweep nothing.")] = False,
    grace: Annotated[
        timedelta | None,
        typer.Option(
            parser=span_argument,
            metavar="SPAN",
            help="Sweep no bytes staged less than this ago: their save may be in progress. An hour by default: 1h.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Trash what no policy keeps, purge what is past its undo window, and sweep the bytes that nothing needs any more.

    Without policies nothing goes to the trash. What goes can be restored until the time that is told. A stream that
    fails is told and left alone, and the exit code is 3.
    """
    with running(output, debug, NAME) as out:
        kept = read_policies(policies) if policies is not None else []
        with open_catalog(NAME, place, engine) as catalog:
            wanted = chosen_streams(catalog, stream)
            clean_up = None if trash_only else (ORPHAN_GRACE if grace is None else grace)
            finish(out, retain(catalog, out, kept, streams=wanted, grace=clean_up, dry_run=dry_run))


def retain(
    catalog: CheckpointCatalog,
    out: Output,
    policies: Sequence[Retention],
    *,
    streams: Sequence[str],
    grace: timedelta | None,
    dry_run: bool,
) -> Done:
    """Do it, stream by stream: what stops one is no reason to leave the others.

    Args:
        catalog: the catalog.
        out: where it says how far it is.
        policies: what is kept.
        streams: of these.
        grace: what was staged less than this ago is not swept; None purges and sweeps nothing.
        dry_run: only say what would go.
    """
    reports: list[RetentionReport] = []
    cleaned: list[CleanUp] = []
    errors: dict[str, str] = {}
    with out.working("applying retention …") as tell:
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
    data: dict[str, Any] = {**asdict(report), "cleaned": [asdict(one) for one in cleaned], "errors": errors}
    lines = [report.explain(), *(_told(one, dry_run) for one in cleaned)]
    lines += [f"left alone: {name}: {error}" for name, error in errors.items()]
    return Done(data, "\n".join(line for line in lines if line), ExitCode.FAULTS if errors else ExitCode.OK)


def _told(one: CleanUp, dry_run: bool) -> str:
    swept = one.swept
    if not (one.purged or swept.chunks):
        return ""
    would = "would be " if dry_run else ""
    orphans = f" {swept.orphans} of them orphaned," if swept.orphans else ""
    attempts = swept.orphans + swept.purged
    return (
        f"{one.stream}: {len(one.purged)} checkpoints {would}purged, {attempts} attempts {would}swept,{orphans} "
        f"{swept.chunks} chunks"
    )


main = EntryPoint(NAME, command)

if __name__ == "__main__":
    main()
