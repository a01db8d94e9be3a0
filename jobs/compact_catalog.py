"""`ckpt-compact`: merge small files, shorten the logs and free the disk."""

from catalog.cli.frame import DebugOption, OutputOption, running
from catalog.cli.job import (
    DryRunOption,
    EngineName,
    EngineOption,
    EntryPoint,
    KeepRemovedOption,
    PlaceArgument,
    finish,
    open_catalog,
)
from catalog.cli.output import OutputFormat
from catalog.cli.tasks import compact

NAME = "ckpt-compact"


def command(
    place: PlaceArgument,
    engine: EngineOption = EngineName.SPARK,
    keep_removed: KeepRemovedOption = None,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Merge small files of the tables into right-sized ones, shorten their logs, and free the disk.

    The exit code is 3 if something was left as it is because it cannot be read.
    """
    with running(output, debug, NAME) as out, open_catalog(NAME, place, engine) as catalog:
        finish(out, compact(catalog, out, keep_removed=keep_removed, dry_run=dry_run))


main = EntryPoint(NAME, command)

if __name__ == "__main__":
    main()
