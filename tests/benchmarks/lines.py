"""What the benchmarks share: how things are timed and told."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from catalog import CheckpointManifest

MIB = 1 << 20
Times = Sequence[float]


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison: ours beside something else."""

    what: str
    ours: str
    p99: str
    beside: str
    theirs: str
    ratio: float
    aim: str
    holds: bool

    @classmethod
    def slower(cls, what: str, ours: Times, beside: str, theirs: Times, aim: float | None) -> "Line":
        """Compare times: how many times as long ours take, at most `aim`."""
        mine, other = statistics.median(ours), statistics.median(theirs)
        holds = aim is None or mine <= aim * other
        told = f"≤ {aim:.3g}" if aim else "-"
        return cls(what, _ms(mine), _ms(percentile(ours, 99)), beside, _ms(other), mine / other, told, holds)

    @classmethod
    def faster(cls, what: str, ours: Times, beside: str, theirs: Times, mib: int, aim: float | None) -> "Line":
        """Compare throughputs: how much of the other's ours is, at least `aim`."""
        mine, other = statistics.median(ours), statistics.median(theirs)
        holds = aim is None or other >= aim * mine
        told = f"≥ {aim:.3g}" if aim else "-"
        speeds = f"{mib / mine:.0f} MiB/s", f"{mib / other:.0f} MiB/s"
        return cls(what, speeds[0], _ms(percentile(ours, 99)), beside, speeds[1], other / mine, told, holds)


def alternate(rounds: int, *actions: Callable[[], Any]) -> list[list[float]]:
    """Return the seconds of each action, run in turn after one warm-up each."""
    for action in actions:
        action()
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for action, spent in zip(actions, times, strict=True):
            began = time.perf_counter()
            action()
            spent.append(time.perf_counter() - began)
    return times


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that this per cent of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def manifest(number: int, size: int = 700) -> CheckpointManifest:
    """A checkpoint of about 1 KB."""
    offsets = {"kafka": {"offsets": {"partition-0": "x" * (size - 300)}, "epoch": 1}}
    return CheckpointManifest.new(number, epoch=number, source_offsets=offsets)


def show(lines: Sequence[Line]) -> str:
    """Return the lines as a table."""
    rows = [("", "median", "p99", "beside", "median", "ratio", "aim")]
    for line in lines:
        mark = line.aim if line.holds else f"{line.aim}  missed"
        rows.append((line.what, line.ours, line.p99, line.beside, line.theirs, f"{line.ratio:.2f}", mark))
    widths = [max(len(row[at]) for row in rows) for at in range(7)]
    texts = (0, 3, 6)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at in texts else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"
