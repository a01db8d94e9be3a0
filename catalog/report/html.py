"""HTML of elements and texts: what is not an element is text, and escaped, so that no stored name can become markup."""

import json
from collections.abc import Iterable
from html import escape
from typing import Any

from catalog.cli.output import visible

MARK = "<!DOCTYPE html><!-- checkpoint-catalog report -->"
"""How every page begins, by which a file that is to be overwritten is known for a report."""


class Html(str):
    """Markup that was made here."""

    __slots__ = ()


Child = Html | str | int | None
_VOID = ("meta", "link", "br")


def text(value: object) -> Html:
    """Return a value as text: hidden characters, such as those that turn the direction, are shown as escapes."""
    return Html(escape(visible(str(value))))


def el(tag: str, /, *children: Child, **attributes: str | None) -> Html:
    """Return an element.

    Args:
        tag: its name.
        children: elements, and texts that are escaped; None is left out.
        attributes: `class_` is class and `data_x` is data-x; None is left out.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(visible(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(one if isinstance(one, Html) else text(one) for one in children if one is not None)
    return Html(f"<{tag}{shown}>" if tag in _VOID else f"<{tag}{shown}>{inner}</{tag}>")


def join(parts: Iterable[Child]) -> Html:
    """Return several things one after the other."""
    return Html("".join(one if isinstance(one, Html) else text(one) for one in parts if one is not None))


def json_script(id: str, data: Any) -> Html:
    """Return data for a script of the page; nothing in it can end the element or begin a comment."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII: U+2028 and the like are escaped
    for one in "<>&":
        written = written.replace(one, f"\\u{ord(one):04x}")
    return Html(f'<script type="application/json" id="{escape(id)}">{written}</script>')
