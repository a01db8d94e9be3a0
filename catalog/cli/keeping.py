"""`ckpt init`, `save` and `restore`: a new catalog, files into it as a checkpoint, and a checkpoint into a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from catalog import files, keys
from catalog.catalog import CheckpointCatalog
from catalog.cli import output as show_as
from catalog.cli.frame import DebugOption, OutputOption, PathArgument, StreamArgument, running
from catalog.cli.job import chosen_streams
from catalog.cli.output import OutputFormat
from catalog.cli.recovering import Position
from catalog.errors import CheckpointNotFoundError, DamagedCatalogError, NotACatalogError
from catalog.restore import new_folder
from catalog.tables.schema import FORMAT_VERSION


def init_command(path: PathArgument, output: OutputOption = OutputFormat.TEXT, debug: DebugOption = False) -> None:
    """Make a catalog in a new or empty folder.

    One that is there already is left as it is. Of a damaged one an empty table is made anew if no bytes are lost by it.
    """
    with running(output, debug) as out:
        told, created = "there is a catalog already", False
        try:
            CheckpointCatalog.native(path).close()
        except DamagedCatalogError as error:
            if getattr(error, "found", False):
                raise
            told = "made the table anew that the catalog had lost"
        except NotACatalogError as error:
            if getattr(error, "found", False):
                raise
            told, created = "made a catalog", True
        with CheckpointCatalog.native(path, create=True) as catalog:
            place = str(catalog.engine.place)
        out.result({"path": place, "created": created, "format": FORMAT_VERSION}, f"{told}: {place}")


def save_command(
    path: PathArgument,
    stream: StreamArgument,
    source: Annotated[
        list[str], typer.Argument(metavar="FILE…|FOLDER", help="Files, or one folder with all below it.")
    ],
    checkpoint_id: Annotated[
        int | None, typer.Option("--id", metavar="N", help="The checkpoint's id; by default the next one.")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(metavar="N", help="Its epoch; by default one more than the latest has.")
    ] = None,
    offset: Annotated[
        list[Position] | None,
        typer.Option(
            parser=Position.parse,
            metavar="SOURCE[/POSITION]=OFFSET",
            help="Where a source stands, such as kafka/partition-0=1234; can be given several times.",
        ),
    ] = None,
    watermark: Annotated[int | None, typer.Option(metavar="N", help="The event-time watermark.")] = None,
    pipeline_hash: Annotated[int | None, typer.Option(metavar="N", help="The pipeline that it is of.")] = None,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Save files, or a folder, as a checkpoint, and print its id.

    Names and bytes are kept, permissions and empty folders are not. What the latest checkpoint has already is not
    written again.
    """
    with running(output, debug) as out:
        # The library has to take epoch 0; validation calls it a failure, so nobody is led there by hand.
        for number, what, least in (
            (checkpoint_id, "--id", 1),
            (epoch, "--epoch", 1),
            (pipeline_hash, "--pipeline-hash", 0),
        ):
            if number is not None:
                keys.u64(number, what, minimum=least)
        found = files.find([Path(one) for one in source])
        with CheckpointCatalog.native(path) as catalog:
            with out.working(f"saving {show_as.count(len(found), 'file')} …"):
                manifest = files.save(
                    catalog.store(stream),
                    found,
                    checkpoint_id=checkpoint_id,
                    epoch=epoch,
                    source_offsets=_source_offsets(offset or []),
                    watermark=watermark,
                    pipeline_hash=pipeline_hash,
                )
            saved = catalog.stream(stream).find(manifest.key, manifest=False)
        size = sum(one.size_bytes for one in manifest.operator_handles[files.OPERATOR].values())
        new = size - int((saved and saved.origin and saved.origin.shared_bytes) or 0)
        number = manifest.checkpoint_id
        told = f"{show_as.count(len(found), 'file')}, {show_as.size(size)}, {show_as.size(new)} of it new"
        out.note(f"saved checkpoint {number}: {told}")
        data = {"stream": stream, "checkpoint_id": number, "files": len(found), "bytes": size, "new_bytes": new}
        out.result(data, str(number))


def _source_offsets(given: Sequence[Position]) -> dict[str, Any]:
    offsets: dict[str, Any] = {}
    for one in given:
        entry = offsets.setdefault(one.source, {"offsets": {}, "epoch": 0})
        if one.position in entry["offsets"]:
            raise typer.BadParameter(f"source {one.source!r} stands in two places at once", param_hint="--offset")
        entry["offsets"][one.position] = one.offset
    return offsets


def restore_command(
    path: PathArgument,
    stream: StreamArgument,
    into: Annotated[str, typer.Option(metavar="FOLDER", help="A new or empty folder.")],
    checkpoint_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="An integer or a UUIDv7; by default the latest.")
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Write a checkpoint into a new folder.

    All of it or nothing, and verified. What `ckpt save` saved comes back as the same files. Of any other checkpoint the
    folder holds manifest.json, all its state, and restore.json, which says what each file is, in the order to apply.
    `ckpt recover --into` chooses the checkpoint.
    """
    with running(output, debug) as out:
        new_folder(into)
        with CheckpointCatalog.native(path) as catalog:
            chosen_streams(catalog, [stream])
            rows = catalog.stream(stream)
            if checkpoint_id is None:
                newest = rows.latest()
                if newest is None:
                    raise CheckpointNotFoundError(f"stream {stream!r} has no committed checkpoint to restore")
                key = newest.key
            else:
                key = keys.any_key(checkpoint_id)
            number = keys.checkpoint_id(key)
            with out.working(f"writing checkpoint {number} …"):
                folder = files.bring_back(rows, key, into)
        written = [one for one in folder.rglob("*") if one.is_file()]
        size = sum(one.stat().st_size for one in written)
        out.result(
            {"stream": stream, "checkpoint_id": number, "folder": str(folder), "files": len(written), "bytes": size},
            f"checkpoint {number} is in {folder}: {show_as.count(len(written), 'file')}, {show_as.size(size)}",
        )
