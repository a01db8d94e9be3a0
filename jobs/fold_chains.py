"""`ckpt-fold`: turn long chains of deltas into one snapshot each."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from catalog.catalog import CheckpointCatalog
from catalog.cli.frame import DebugOption, OutputOption, running
from catalog.cli.job import (
    Done,
    DryRunOption,
    EngineName,
    EngineOption,
    EntryPoint,
    PlaceArgument,
    StreamOption,
    chosen_streams,
    finish,
    open_catalog,
    progressing,
)
from catalog.cli.output import Output, OutputFormat
from catalog.folding import MIN_LINKS

NAME = "ckpt-fold"

MinLinksOption = Annotated[
    int, typer.Option("--min-links", metavar="N", min=2, help="Only chains of at least so many links.")
]


def command(
    place: PlaceArgument,
    engine: EngineOption = EngineName.SPARK,
    stream: StreamOption = None,
    min_links: MinLinksOption = MIN_LINKS,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Turn long delta chains into one snapshot each, computed on the executors, so that recovery reads one artifact.

    Formats that no folder knows are left alone and named.
    """
    with running(output, debug, NAME) as out, open_catalog(NAME, place, engine) as catalog:
        finish(out, fold(catalog, out, streams=stream, min_links=min_links, dry_run=dry_run))


def fold(
    catalog: CheckpointCatalog, out: Output, *, streams: Sequence[str] | None, min_links: int, dry_run: bool
) -> Done:
    """Do it."""
    wanted = chosen_streams(catalog, streams)
    with progressing(out, "folding …") as progress:
        report = catalog.fold_chains(wanted, min_links=min_links, dry_run=dry_run, progress=progress)
    return Done(asdict(report), report.explain())


main = EntryPoint(NAME, command)

if __name__ == "__main__":
    main()
