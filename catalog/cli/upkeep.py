"""`ckpt validate`, `fold`, `compact`, `sweep` and `drill`: what the scheduled jobs do, by hand and without Spark."""

from catalog.cli import tasks
from catalog.cli.frame import DebugOption, OutputOption, PathArgument, running
from catalog.cli.job import (
    DepthOption,
    DryRunOption,
    EngineName,
    EngineOption,
    GraceOption,
    KeepRemovedOption,
    MinLinksOption,
    PercentOption,
    SampleOption,
    ScratchOption,
    StreamOption,
    chosen_sample,
    finish,
)
from catalog.cli.output import OutputFormat
from catalog.cli.starting import opened
from catalog.folding import MIN_LINKS
from catalog.sweep import ORPHAN_GRACE
from catalog.verify import Depth


def validate_command(
    path: PathArgument,
    stream: StreamOption = None,
    depth: DepthOption = Depth.HASHES,
    sample: SampleOption = None,
    sample_percent: PercentOption = None,
    dry_run: DryRunOption = False,
    engine: EngineOption = EngineName.NATIVE,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Look whether live checkpoints are sound, and record it.

    The exit code is 3 if one is not. By default every byte is read. A dry run looks just the same, but records
    nothing. The job is ckpt-verify.
    """
    with running(output, debug) as out:
        wanted = chosen_sample(sample, sample_percent)
        with opened(out, path, engine) as catalog:
            finish(out, tasks.verify(catalog, out, streams=stream, depth=depth, sample=wanted, dry_run=dry_run))


def fold_command(
    path: PathArgument,
    stream: StreamOption = None,
    min_links: MinLinksOption = MIN_LINKS,
    dry_run: DryRunOption = False,
    engine: EngineOption = EngineName.NATIVE,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Turn long chains of deltas into one snapshot each.

    Recovery then reads one artifact instead of a hundred. Formats that no folder knows are left alone and named. The
    exit code is 3 if a chain is broken or could not be folded. The job is ckpt-fold.
    """
    with running(output, debug) as out, opened(out, path, engine) as catalog:
        finish(out, tasks.fold(catalog, out, streams=stream, min_links=min_links, dry_run=dry_run))


def compact_command(
    path: PathArgument,
    keep_removed: KeepRemovedOption = None,
    dry_run: DryRunOption = False,
    engine: EngineOption = EngineName.NATIVE,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Merge small files, shorten the logs, and free the disk.

    The exit code is 3 if something was left as it is because it cannot be read. The job is ckpt-compact.
    """
    with running(output, debug) as out, opened(out, path, engine) as catalog:
        finish(out, tasks.compact(catalog, out, keep_removed=keep_removed, dry_run=dry_run))


def sweep_command(
    path: PathArgument,
    stream: StreamOption = None,
    grace: GraceOption = None,
    dry_run: DryRunOption = False,
    engine: EngineOption = EngineName.NATIVE,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Delete for good what is past its undo window.

    And the bytes that nothing needs any more. The exit code is 3 if a stream was left alone because it cannot be read.
    It is a part of the job ckpt-retain.
    """
    with running(output, debug) as out, opened(out, path, engine) as catalog:
        waiting = ORPHAN_GRACE if grace is None else grace
        finish(out, tasks.sweep(catalog, out, streams=stream, grace=waiting, dry_run=dry_run))


def drill_command(
    path: PathArgument,
    stream: StreamOption = None,
    sample: SampleOption = None,
    sample_percent: PercentOption = None,
    scratch: ScratchOption = None,
    dry_run: DryRunOption = False,
    engine: EngineOption = EngineName.NATIVE,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Restore some checkpoints into scratch space, and time it.

    The exit code is 3 if one could not be restored. How it went is recorded. The job is ckpt-drill.
    """
    with running(output, debug) as out:
        wanted = chosen_sample(sample, sample_percent)
        with opened(out, path, engine) as catalog:
            done = tasks.drill(catalog, out, streams=stream, sample=wanted, scratch=scratch, dry_run=dry_run)
            finish(out, done)
