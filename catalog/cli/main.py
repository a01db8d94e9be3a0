"""`ckpt`: the catalog on the command line; docs/CLI.md describes every command."""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from catalog.cli import asking, changing, doctor, keeping, looking, moving, overview, recovering, reporting, upkeep
from catalog.cli.frame import EXIT_CODES, CatalogCommand, make_app, run_app

COMMANDS: dict[str, Callable[..., None]] = {
    "init": keeping.init_command,
    "streams": overview.streams_command,
    "list": looking.list_command,
    "show": looking.show_command,
    "latest": overview.latest_command,
    "save": keeping.save_command,
    "restore": keeping.restore_command,
    "validate": upkeep.validate_command,
    "recover": recovering.recover_command,
    "diff": overview.diff_command,
    "pin": changing.pin_command,
    "unpin": changing.unpin_command,
    "prune": changing.prune_command,
    "delete": changing.delete_command,
    "undo": changing.undo_command,
    "fold": upkeep.fold_command,
    "compact": upkeep.compact_command,
    "sweep": upkeep.sweep_command,
    "drill": upkeep.drill_command,
    "history": overview.history_command,
    "sql": asking.sql_command,
    "report": reporting.report_command,
    "import": moving.import_command,
    "export": moving.export_command,
    "doctor": doctor.doctor_command,
}
"""Each in a module that tells its story; in the order of the help."""

app = make_app("ckpt", no_args_is_help=True, epilog=EXIT_CODES)
for name, command in COMMANDS.items():
    app.command(name, cls=CatalogCommand, epilog=EXIT_CODES)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ckpt {version('checkpoint-catalog')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Keep checkpoints in a catalog, look into it, and get them back."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit.

    Args:
        arguments: those of the command line, by default of this process.
    """
    run_app(app, arguments)


if __name__ == "__main__":
    main()
