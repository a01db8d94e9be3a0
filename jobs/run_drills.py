"""`ckpt-drill`: restore some checkpoints into scratch space, and record whether and how fast that works."""

from catalog.cli.frame import DebugOption, OutputOption, running
from catalog.cli.job import (
    DryRunOption,
    EngineName,
    EngineOption,
    EntryPoint,
    PercentOption,
    PlaceArgument,
    SampleOption,
    ScratchOption,
    StreamOption,
    chosen_sample,
    finish,
    open_catalog,
)
from catalog.cli.output import OutputFormat
from catalog.cli.tasks import drill

NAME = "ckpt-drill"


def command(
    place: PlaceArgument,
    engine: EngineOption = EngineName.SPARK,
    stream: StreamOption = None,
    sample: SampleOption = None,
    sample_percent: PercentOption = None,
    scratch: ScratchOption = None,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Restore checkpoints into scratch space, check every hash, time it and record it.

    Without a sample, the latest of each stream and the one drilled the longest ago, if ever. The exit code is 3 if one
    could not be restored.
    """
    with running(output, debug, NAME) as out:
        wanted = chosen_sample(sample, sample_percent)
        with open_catalog(NAME, place, engine) as catalog:
            finish(out, drill(catalog, out, streams=stream, sample=wanted, scratch=scratch, dry_run=dry_run))


main = EntryPoint(NAME, command)

if __name__ == "__main__":
    main()
