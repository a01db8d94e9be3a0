"""`ckpt-maintain`: all that keeps a catalog small and safe, in the right order; a step that fails hides no other."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import typer

from catalog import keys
from catalog.catalog import CheckpointCatalog
from catalog.cli.frame import DebugOption, ExitCode, OutputOption, exit_code, running, sentence
from catalog.cli.job import (
    DepthOption,
    Done,
    DryRunOption,
    EngineName,
    EngineOption,
    EntryPoint,
    KeepRemovedOption,
    MinLinksOption,
    PercentOption,
    PlaceArgument,
    PoliciesOption,
    SampleOption,
    ScratchOption,
    chosen_sample,
    finish,
    open_catalog,
)
from catalog.cli.output import Output, OutputFormat
from catalog.cli.tasks import compact, drill, fold, retain, verify
from catalog.errors import CatalogError
from catalog.folding import MIN_LINKS
from catalog.lifecycle import Status
from catalog.policies import Retention, read_policies
from catalog.sweep import ORPHAN_GRACE
from catalog.verify import Depth

NAME = "ckpt-maintain"


class Step(StrEnum):
    """What is done, in this order.

    Verification comes first, because retention may keep what it found sound, and leaves streams alone in which
    something is broken. Of folded chains retention need not keep the links, compaction frees what it let go, and drills
    show that what is left can be restored.
    """

    VERIFY = "verify"
    FOLD = "fold"
    RETAIN = "retain"
    COMPACT = "compact"
    DRILL = "drill"


def command(
    place: PlaceArgument,
    policies: PoliciesOption = None,
    engine: EngineOption = EngineName.SPARK,
    skip: Annotated[
        list[Step] | None, typer.Option("--skip", help="Not this step; can be given several times.")
    ] = None,
    depth: DepthOption = Depth.METADATA,
    sample: SampleOption = None,
    sample_percent: PercentOption = None,
    min_links: MinLinksOption = MIN_LINKS,
    keep_removed: KeepRemovedOption = None,
    scratch: ScratchOption = None,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Verify, fold, apply retention and clean up, compact, and drill restores; every step that can be done is.

    A sample is one of what is verified. Streams in which verification finds an integrity failure are left alone by
    retention until somebody has looked. The exit code is 0 if all is well, that of the steps if they all failed in the
    same way, else 3.
    """
    with running(output, debug, NAME) as out:
        kept = read_policies(policies) if policies is not None else []
        wanted = chosen_sample(sample, sample_percent)
        with open_catalog(NAME, place, engine) as catalog:
            verification = Verification()
            steps: dict[Step, Callable[[], Done]] = {
                Step.VERIFY: lambda: verification.run(
                    catalog, lambda: verify(catalog, out, streams=None, depth=depth, sample=wanted, dry_run=dry_run)
                ),
                Step.FOLD: lambda: fold(catalog, out, streams=None, min_links=min_links, dry_run=dry_run),
                Step.RETAIN: lambda: retain_sound(catalog, out, kept, verification, dry_run=dry_run),
                Step.COMPACT: lambda: compact(catalog, out, keep_removed=keep_removed, dry_run=dry_run),
                Step.DRILL: lambda: drill(catalog, out, streams=None, sample=None, scratch=scratch, dry_run=dry_run),
            }
            left = {step: steps[step] for step in Step if step not in (skip or ())}
            finish(out, run_steps(out, left, debug=debug))


@dataclass(slots=True)
class Verification:
    """What retention has to know of the step before it."""

    broken: set[str] | None = field(default_factory=set)
    """Streams with an integrity failure; None if that is not known."""

    def run(self, catalog: CheckpointCatalog, work: Callable[[], Done]) -> Done:
        """Verify, and remember what was found."""
        self.broken = None  # not known, if the next line fails
        done = work()
        faults = [issue for issue in done.data["issues"] if issue["severity"] == "integrity"]
        self.broken = {one["stream"] for one in faults if _was_counted_on(catalog, one["stream"], one["checkpoint_id"])}
        return done


def _was_counted_on(catalog: CheckpointCatalog, stream: str, checkpoint_id: int | str) -> bool:
    """Say whether anybody could have restored from a checkpoint; what came in corrupt is only waiting to go."""
    found = catalog.stream(stream).find(keys.any_key(str(checkpoint_id)), manifest=False)
    return not (found and found.status is Status.PREPARED and found.imported_fault)


def retain_sound(
    catalog: CheckpointCatalog,
    out: Output,
    policies: Sequence[Retention],
    verification: Verification,
    *,
    dry_run: bool,
) -> Done:
    """Apply retention to all streams but those in which something is broken: what it needs may be in the trash."""
    if verification.broken is None:
        raise CatalogError("nothing is deleted, because it is not known whether the checkpoints are sound")
    broken = sorted(verification.broken)
    sound = [name for name in catalog.streams(staged=True) if name not in verification.broken]
    done = retain(catalog, out, policies, streams=sound, grace=ORPHAN_GRACE, dry_run=dry_run)
    left = [f"left alone: {name}: verification found an integrity failure" for name in broken]
    return Done({**done.data, "left_alone": broken}, "\n".join([done.text, *left]), done.code)


def run_steps(out: Output, steps: Mapping[Step, Callable[[], Done]], *, debug: bool = False) -> Done:
    """Run all steps, whatever becomes of each, and say how it went as a whole."""
    data: list[dict[str, Any]] = []
    texts: list[str] = []
    codes: list[ExitCode] = []
    for step, work in steps.items():
        began = time.monotonic()
        try:
            done = work()
            error = None
        except Exception as found:  # noqa: BLE001 - told, and no reason to leave the other steps
            error = sentence(found)
            out.note(f"{NAME}: {step}: {error}")
            if debug:
                traceback.print_exc()
            done = Done({}, f"failed: {error}", exit_code(found))
        seconds = time.monotonic() - began
        codes.append(done.code)
        data.append(
            {"step": step, "exit_code": int(done.code), "seconds": seconds, "error": error, "result": done.data}
        )
        texts.append(f"== {step}: exit code {int(done.code)}, {seconds:.1f} s\n{done.text}")
    return Done({"steps": data}, "\n".join(texts), as_a_whole(codes))


def as_a_whole(codes: Sequence[ExitCode]) -> ExitCode:
    """Return the exit code of several steps: their own if they agree, else that it is partly done."""
    return codes[0] if len(set(codes)) == 1 else ExitCode.FAULTS if codes else ExitCode.OK


main = EntryPoint(NAME, command)

if __name__ == "__main__":
    main()
