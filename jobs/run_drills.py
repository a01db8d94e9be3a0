"""`ckpt-drill`: restore some checkpoints into scratch space, and record whether and how fast that works."""

from collections.abc import Sequence
from dataclasses import asdict

from catalog.catalog import CheckpointCatalog
from catalog.cli.frame import DebugOption, ExitCode, OutputOption, running
from catalog.cli.job import (
    Done,
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
    chosen_streams,
    finish,
    open_catalog,
    progressing,
)
from catalog.cli.output import Output, OutputFormat
from catalog.verify import Sample

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


def drill(
    catalog: CheckpointCatalog,
    out: Output,
    *,
    streams: Sequence[str] | None,
    sample: Sample | None,
    scratch: str | None,
    dry_run: bool,
) -> Done:
    """Do it."""
    wanted = chosen_streams(catalog, streams)
    with progressing(out, "restoring …") as progress:
        report = catalog.run_drills(wanted, sample=sample, scratch=scratch, dry_run=dry_run, progress=progress)
    data = {**asdict(report), "failed": len(report.failed)}
    return Done(data, report.explain(), ExitCode.FAULTS if report.failed else ExitCode.OK)


main = EntryPoint(NAME, command)

if __name__ == "__main__":
    main()
