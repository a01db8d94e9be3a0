"""`ckpt-retain`: trash what no policy keeps, purge what is past its undo window, sweep what nothing needs."""

from typing import Annotated

import typer

from catalog.cli.frame import DebugOption, OutputOption, running
from catalog.cli.job import (
    DryRunOption,
    EngineName,
    EngineOption,
    EntryPoint,
    GraceOption,
    PlaceArgument,
    PoliciesOption,
    StreamOption,
    chosen_streams,
    finish,
    open_catalog,
)
from catalog.cli.output import OutputFormat
from catalog.cli.tasks import retain
from catalog.policies import read_policies
from catalog.sweep import ORPHAN_GRACE

NAME = "ckpt-retain"


def command(
    place: PlaceArgument,
    policies: PoliciesOption = None,
    engine: EngineOption = EngineName.SPARK,
    stream: StreamOption = None,
    trash_only: Annotated[bool, typer.Option("--trash-only", help="Purge and sweep nothing.")] = False,
    grace: GraceOption = None,
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
            wanted = chosen_streams(catalog, stream, staged=True)
            clean_up = None if trash_only else (ORPHAN_GRACE if grace is None else grace)
            finish(out, retain(catalog, out, kept, streams=wanted, grace=clean_up, dry_run=dry_run))


main = EntryPoint(NAME, command)

if __name__ == "__main__":
    main()
