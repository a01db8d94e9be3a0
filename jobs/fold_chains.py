"""`ckpt-fold`: turn long chains of deltas into one snapshot each."""

from catalog.cli.frame import DebugOption, OutputOption, running
from catalog.cli.job import (
    DryRunOption,
    EngineName,
    EngineOption,
    EntryPoint,
    MinLinksOption,
    PlaceArgument,
    StreamOption,
    finish,
    open_catalog,
)
from catalog.cli.output import OutputFormat
from catalog.cli.tasks import fold
from catalog.folding import MIN_LINKS

NAME = "ckpt-fold"


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

    Formats that no folder knows are left alone and named. The exit code is 3 if a chain is broken or could not be
    folded.
    """
    with running(output, debug, NAME) as out, open_catalog(NAME, place, engine) as catalog:
        finish(out, fold(catalog, out, streams=stream, min_links=min_links, dry_run=dry_run))


main = EntryPoint(NAME, command)

if __name__ == "__main__":
    main()
