"""The catalog's story on real data, from the first checkpoint to SQL: `make run`, or `python -m catalog.demo`."""

import argparse
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from catalog import CatalogError, CheckpointCatalog, Every, Last, Retention
from catalog.cli.output import size
from catalog.examples.words import POSITION, SINK, SOURCE, WordsJob, library, words_in
from catalog.keys import integer_key
from catalog.session import QUICK_SETTINGS, build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "words"
CHECKPOINTS = 10
CRASH_AFTER = 8
"""Its sink never answers for this one."""
DAMAGED = 7
WIDEST = 100
QUESTION = """\
SELECT operator, count(*) AS checkpoints,
  sum(bytes) AS state, sum(new_bytes) AS stored
FROM checkpoint_growth
GROUP BY operator ORDER BY stored DESC"""


_NUMBER = re.compile(r"([\d.,]+( \w+)?)?")


class Teller:
    """Prints a story in chapters, as wide as the terminal; where there is none, in 80 columns."""

    def __init__(self) -> None:
        """Make it."""
        self._console = Console(highlight=False, emoji=False, markup=False)
        self._console.width = min(self._console.width, WIDEST)
        self._chapters = 0

    def chapter(self, title: str) -> None:
        """Begin a chapter."""
        self._chapters += 1
        self._console.print(f"\n{self._chapters}. {title}", style="bold cyan")

    def say(self, text: str, style: str = "") -> None:
        """Say something."""
        self._console.print(Text(text, style))

    def quote(self, text: str) -> None:
        """Show code and commands; lines are never broken, so that they can be copied."""
        for line in text.splitlines():
            self._console.print(Text(f"  {line}", "green"), soft_wrap=True)

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Show a table; numbers, with or without a unit, stand to the right."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        shown = [[f"{one:,}" if isinstance(one, int) else str(one) for one in row] for row in rows]
        for title, *column in zip(titles, *shown, strict=True):
            numbers = all(_NUMBER.fullmatch(one) for one in column)
            table.add_column(title, justify="right" if numbers else "left", overflow="fold")
        for row in shown:
            table.add_row(*row)
        self._console.print(Padding(table, (1, 0, 1, 2)))

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Say what is waited for while it is."""
        self.say(f"{what} …", "dim")
        began = time.monotonic()
        yield
        self.say(f"… done in {time.monotonic() - began:.1f} s.", "dim")


def tell(story: Teller, folder: Path) -> None:
    """Run it all in a new folder, and say what happens."""
    place, log = folder / "catalog", folder / "spark.log"
    story.say("The life of some checkpoints, in a fresh catalog on this machine. Every number is measured.")
    spark = start_spark(log)
    story.say("Spark starts in the background for the last chapter; the first time it fetches 13 MB of jars.", "dim")
    with CheckpointCatalog.native(place, create=True, actor="demo") as catalog:
        checkpointing(story, catalog, folder)
        crashed = version(catalog)
        damaging(story, place)
        validating(story, catalog)
        recovering(story, catalog, folder)
        pruned = pruning(story, catalog)
        travelling(story, catalog, {"after the crash": crashed, "after the prune": pruned, "now": version(catalog)})
        asking(story, place, spark, log)
    story.say("\nWhat to try next", "bold cyan")
    going_on(story, folder, place, crashed)


def start_spark(log: Path) -> "Future[SparkSession]":
    """Start Spark in a thread that nothing waits for at the end, whatever happens before."""
    spark: Future[SparkSession] = Future()

    def start() -> None:
        try:
            # For one small query: compiling it well would take longer.
            spark.set_result(build_session(settings=QUICK_SETTINGS, log=log))
        except Exception as error:  # noqa: BLE001 - told to whoever asks for the session
            spark.set_exception(error)

    threading.Thread(target=start, daemon=True).start()
    return spark


def version(catalog: CheckpointCatalog) -> int:
    """Return the newest version of the table `checkpoints`."""
    return catalog.engine.versions()[-1].number


def checkpointing(story: Teller, catalog: CheckpointCatalog, folder: Path) -> None:
    """Run the job until it crashes."""
    story.chapter("A job takes checkpoints")
    files = library()
    each = -(-len(files) // CHECKPOINTS)
    story.say(
        f"A job counts the words in the {len(files)} files of Python's standard library and builds an index of them. "
        f"Every {each} files it takes a checkpoint: both states and the number of files read, in one commit. "
        f"Then its sink, a {SINK}, confirms. None of this needs a JVM."
    )
    job = WordsJob(catalog.store(STREAM), files, folder / "index-1")
    saved = []
    for number in range(1, CRASH_AFTER + 1):
        job.read(each)
        done = job.checkpoint(delivered=number < CRASH_AFTER)
        saved.append((done.checkpoint_id, job.position, job.words.total(), round(done.seconds * 1000)))
    job.coordinator.close()
    history = catalog.histories([STREAM])[STREAM]
    rows = []
    for (number, *counted, milliseconds), one in zip(saved, history.values(), strict=True):
        shared = int((one.origin.shared_bytes if one.origin else 0) or 0)
        rows.append((number, *counted, size(one.bytes), size(one.bytes - shared), f"{milliseconds} ms"))
    story.table(("id", "files read", "words", "state", "newly stored", "saved in"), rows)
    story.say(
        "Index files that an earlier checkpoint has are not stored again. "
        f"Now the job crashes: the sink never confirmed checkpoint {CRASH_AFTER}."
    )


def damaging(story: Teller, place: Path) -> None:
    """Change one bit of a checkpoint's state in the Delta table, without any code of the catalog."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    story.chapter("Something damages a checkpoint")
    table = DeltaTable(str(place / "artifacts"))
    where = {"stream": STREAM, "checkpoint_key": integer_key(DAMAGED), "operator": "words"}
    rows = table.to_pyarrow_table(filters=[(column, "=", value) for column, value in where.items()]).to_pylist()
    data = bytearray(rows[0]["data"])
    data[len(data) // 2] ^= 1
    rows[0]["data"] = bytes(data)
    schema = pa.schema(table.schema().to_arrow())
    predicate = " AND ".join(f"{column} = '{value}'" for column, value in where.items())
    write_deltalake(table, pa.Table.from_pylist(rows, schema), mode="overwrite", predicate=predicate)
    story.say(
        f"One bit of {size(len(data))} is flipped in the word counts of checkpoint {DAMAGED}: straight in the Delta "
        "table, past the catalog, as a bad disk or a careless script would. Nobody is told."
    )


def validating(story: Teller, catalog: CheckpointCatalog) -> None:
    """Find the damage."""
    story.chapter("Validation finds it")
    story.say("It reads every byte of every checkpoint and compares SHA-256 hashes.")
    story.quote('catalog.validate(depth="hashes")')
    report = catalog.validate(depth="hashes")
    story.table(
        ("checkpoint", "what is wrong"),
        [(result.checkpoint_id, issue) for _, result in report.results for issue in result.issues],
    )
    story.say(
        f"{report.checked} checkpoints, {size(report.bytes)} in {report.seconds:.1f} s. "
        "The catalog remembers what was checked, when and how."
    )


def recovering(story: Teller, catalog: CheckpointCatalog, folder: Path) -> None:
    """Go on from the newest good checkpoint, and count as if nothing had happened."""
    story.chapter("Recovery walks back, and says why")
    story.quote(f'catalog.recover("{STREAM}")')
    report = catalog.recover(STREAM)
    passed_over = [(one, f"passed over: {reason}") for one, reason in report.skipped]
    story.table(("checkpoint", "verdict"), [*passed_over, (report.chosen_id, "chosen: eligible and valid")])
    files = library()
    each = -(-len(files) // CHECKPOINTS)
    job = WordsJob(catalog.store(STREAM), files, folder / "index-2")
    story.say(f"The job starts again. It restores checkpoint {report.chosen_id} and goes on after file {job.position}.")
    taken = []
    while job.position < len(files):
        job.read(2 * each)
        taken.append(str(job.checkpoint().checkpoint_id))
    job.coordinator.close()
    undisturbed = Counter(word for file in files for word in words_in(file))
    verdict = "exactly as many as" if job.words == undisturbed else "NOT AS MANY AS"
    story.say(
        f"It takes checkpoints {' and '.join(taken)}, and ends with {job.words.total():,} words, "
        f"{len(job.words):,} different ones: {verdict} a count without a crash, word by word."
    )


def pruning(story: Teller, catalog: CheckpointCatalog) -> int:
    """Plan, prune and undo; return the version after the prune."""
    story.chapter("A prune: planned, done, undone")
    policy = Retention((Last(3), Every(4)))
    story.say("Keep the newest 3, and every 4th. First only a plan, with a reason and the bytes for each:")
    story.quote("catalog.apply_retention([Retention((Last(3), Every(4)))], dry_run=True)")
    plan = catalog.apply_retention([policy], dry_run=True)
    story.table(
        ("id", "plan", "why", "state", "freed"),
        [
            (
                one.checkpoint_id,
                "keep" if one.keep else "remove",
                one.reason,
                size(one.bytes),
                "" if one.keep else size(one.freed_bytes),
            )
            for one in plan.planned
        ],
    )
    total, freed = sum(one.bytes for one in plan.removed), sum(one.freed_bytes for one in plan.removed)
    story.say(f"{size(freed)} of {size(total)} would be freed: the other bytes are shared with checkpoints that stay.")
    store = catalog.store(STREAM)
    report = catalog.apply_retention([policy])
    pruned = version(catalog)
    story.say(f"Done: {spelled(store.list_ids())} are left. The others are in the trash, for a week.")
    for one in report.removed:
        store.restore(int(one.checkpoint_id))
    story.say(f"Undone: {spelled(store.list_ids())} are back.")
    return pruned


def travelling(story: Teller, catalog: CheckpointCatalog, moments: dict[str, int]) -> None:
    """Look at the catalog as it was."""
    story.chapter("Time travel")
    story.say("Every commit is a version, and any of them can be asked, also for what recovery would have done.")
    story.quote(f"catalog.as_of(version={moments['after the prune']})")
    rows = []
    for moment, number in moments.items():
        past = catalog.as_of(version=number)
        ids = past.store(STREAM).list_ids()
        rows.append((f"{moment} (version {number})", spelled(ids), past.recover(STREAM).chosen_id))
    story.table(("moment", "live checkpoints", "recovery chooses"), rows)


def asking(story: Teller, place: Path, spark: "Future[SparkSession]", log: Path) -> None:
    """Ask a question in SQL."""
    story.chapter("SQL answers a question")
    story.say("How much state have the checkpoints, and how much of it is stored? The tables are Delta, so ask Spark:")
    story.quote(QUESTION)
    try:
        if not spark.done():
            with story.waiting("Waiting for Spark, which is still starting"):
                spark.result()
        session = spark.result()
        with story.waiting("Spark runs the query"):
            CheckpointCatalog.for_path(session, place).view("checkpoint_growth").createTempView("checkpoint_growth")
            rows = session.sql(QUESTION).collect()
            session.stop()
    except Exception:
        story.say(f"Spark failed; what it said for itself is in {log}")
        raise
    story.table(
        ("operator", "checkpoints", "state", "stored"),
        [(row.operator, row.checkpoints, size(int(row.state)), size(int(row.stored))) for row in rows],
    )
    story.say("Counts change with every file and are stored anew; the index only grows and is stored once.")


def going_on(story: Teller, folder: Path, place: Path, crashed: int) -> None:
    """Say what can be done with what is there now."""
    story.say("The catalog stays where it is. These commands answer without a JVM:")
    story.quote(
        f"{command('ckpt')} list {place}\n"
        f"{command('ckpt')} show {place} {STREAM} {DAMAGED}\n"
        f"{command('ckpt')} recover {place} {STREAM} --explain --as-of {crashed}\n"
        f"{command('ckpt')} recover {place} {STREAM} --explain --at-offset {SOURCE}/{POSITION}=400\n"
        f"{command('ckpt-drill')} {place} --engine native"
    )
    story.say("A job with 120 MiB of state, which you may kill and start again as often as you like:")
    story.quote(f"{command('python')} -m catalog.examples.counting {folder / 'counting'}")
    if Path("notebooks", "quick_start.ipynb").is_file():
        story.say("To read on: notebooks/quick_start.ipynb, README.md, docs/. To throw all of this away:")
    else:
        story.say("To throw all of this away:")
    story.quote(f"rm -r {folder}")


def command(name: str) -> str:
    """Return how to call a command of this environment from here."""
    beside = Path(sys.executable).with_name(name)
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


def spelled(ids: Sequence[int]) -> str:
    """Return ids for people, runs of them as such: 1-8, 10."""
    runs: list[list[int]] = []
    for one in ids:
        if runs and runs[-1][-1] == one - 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m catalog.demo", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="a new or empty folder; by default a temporary one")
    folder = parser.parse_args().folder
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="ckpt-demo-"))
    elif folder.exists() and any(folder.iterdir()):
        parser.error(f"{folder} is not empty: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        tell(Teller(), folder)
    except CatalogError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        print(f"interrupted; what was made so far is in {folder}", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
