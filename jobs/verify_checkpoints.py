"""`ckpt-verify`: look at live checkpoints, on the executors, and record what was found."""

from catalog.cli.frame import DebugOption, OutputOption, running
from catalog.cli.job import (
    DepthOption,
    DryRunOption,
    EngineName,
    EngineOption,
    EntryPoint,
    PercentOption,
    PlaceArgument,
    SampleOption,
    StreamOption,
    chosen_sample,
    finish,
    open_catalog,
)
from catalog.cli.output import OutputFormat
from catalog.cli.tasks import verify
from catalog.verify import Depth

NAME = "ckpt-verify"


def command(
    place: PlaceArgument,
    engine: EngineOption = EngineName.SPARK,
    stream: StreamOption = None,
    depth: DepthOption = Depth.HASHES,
    sample: SampleOption = None,
    sample_percent: PercentOption = None,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Validate live checkpoints by the rules of the catalog, and record what was found.

    A dry run looks just the same, but records nothing. The exit code is 3 if there is an integrity failure.
    """
    with running(output, debug, NAME) as out:
        wanted = chosen_sample(sample, sample_percent)
        with open_catalog(NAME, place, engine) as catalog:
            finish(out, verify(catalog, out, streams=stream, depth=depth, sample=wanted, dry_run=dry_run))


main = EntryPoint(NAME, command)

if __name__ == "__main__":
    main()
