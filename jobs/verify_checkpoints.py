"""`ckpt-verify`: look at live checkpoints, on the executors, and record what was found."""

from collections.abc import Sequence

from catalog.catalog import CheckpointCatalog
from catalog.cli.frame import DebugOption, ExitCode, OutputOption, running
from catalog.cli.job import (
    DepthOption,
    Done,
    DryRunOption,
    EngineName,
    EngineOption,
    EntryPoint,
    PercentOption,
    PlaceArgument,
    SampleOption,
    StreamOption,
    chosen_sample,
    chosen_streams,
    finish,
    open_catalog,
    progressing,
)
from catalog.cli.output import Output, OutputFormat
from catalog.verify import Depth, Sample

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


def verify(
    catalog: CheckpointCatalog,
    out: Output,
    *,
    streams: Sequence[str] | None,
    depth: Depth,
    sample: Sample | None,
    dry_run: bool,
) -> Done:
    """Do it."""
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


main = EntryPoint(NAME, command)

if __name__ == "__main__":
    main()
