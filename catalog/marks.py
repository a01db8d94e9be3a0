"""What the mark of a purged checkpoint keeps of its life, for moments before the purge that no log reaches. Pure.

A clean-up deletes all other rows of a purged checkpoint. Without this a moment told by rows would show nothing of it.
"""

import json
from datetime import datetime
from typing import Any

from catalog.lifecycle import Change, Checkpoint, Revision, pin_name


def details(checkpoint: Checkpoint) -> str:
    """Return the details of the mark that purges a checkpoint."""
    told = {
        "saved_at": checkpoint.origin.at.isoformat() if checkpoint.origin else None,
        "trashed_at": checkpoint.trash.at.isoformat() if checkpoint.trash else None,
        "life": [_kept(row) for row in checkpoint.life],
    }
    return json.dumps(told)


def saved_at(mark: Revision) -> datetime | None:
    """Return when a purged checkpoint was saved, None if nobody has written it down."""
    text = _told(mark).get("saved_at")
    return datetime.fromisoformat(text) if text else None


def life(mark: Revision) -> list[Revision] | None:
    """Return the revisions that said whether a purged checkpoint is seen or held, with nothing of its content.

    None if they are not told: only later versions of this package write them down.
    """
    told = _told(mark).get("life")
    return None if told is None else [_revision(mark, one) for one in told]


def _kept(row: Revision) -> dict[str, Any]:
    kept = {
        "revision": row.revision,
        "change": row.change,
        "at": row.at.isoformat(),
        "reason": row.reason,
        "until": row.until.isoformat() if row.until else None,
        "pin": pin_name(row) if row.change in (Change.PINNED, Change.UNPINNED) else None,
    }
    return {name: value for name, value in kept.items() if value is not None}


def _revision(mark: Revision, told: dict[str, Any]) -> Revision:
    return Revision(
        stream=mark.stream,
        checkpoint_key=mark.checkpoint_key,
        revision=told["revision"],
        change=told["change"],
        format=mark.format,
        insert_id=mark.insert_id,
        at=datetime.fromisoformat(told["at"]),
        reason=told.get("reason"),
        until=datetime.fromisoformat(told["until"]) if "until" in told else None,
        details=json.dumps({"pin": told["pin"]}) if "pin" in told else None,
    )


def _told(mark: Revision) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(mark.details or "{}")
    return found
