"""A report as one HTML page that needs nothing else: styles, script, libraries and data are inside."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files

import vl_convert

from catalog.cli.output import moment
from catalog.report import sections
from catalog.report.charts import timeline
from catalog.report.facts import Report
from catalog.report.findings import Finding, levels
from catalog.report.html import MARK, Html, el, json_script
from catalog.report.pieces import figure


def render(report: Report, found: Sequence[Finding]) -> str:
    """Return a report as a page.

    Args:
        report: what it tells.
        found: what needs attention, worst first.
    """
    now, worst = report.made_at, levels(report, found)
    ordered = sorted(report.streams, key=lambda one: (-worst[one.name], -one.bytes, one.name))
    times = timeline(ordered)
    drawn = [times] if times else []
    parts = {"Attention": sections.attention(found), "Streams": sections.streams(ordered, worst, now)}
    parts["Timeline"] = figure(times) if times else el("p", "There is no checkpoint yet.", class_="faint")
    for title, (shown, some) in {
        "Size and growth": sections.growth(ordered),
        "Faults": sections.faults(ordered, now),
        "Restore drills": sections.drills(ordered, now),
        "Retention": sections.retention(report, ordered),
    }.items():
        parts[title] = shown
        drawn += some
    style, script = _asset("page.css"), _bundle(_asset("page.js"))
    specs = json_script("charts", {f"chart-{one.id}": one.spec for one in drawn})
    body = el("body", _header(report, found, list(parts)), _main(parts), _footer(), specs, el("script", Html(script)))
    return MARK + el("html", _head(report, style, script), body, lang="en", data_made=now.isoformat())


def _head(report: Report, style: str, script: str) -> Html:
    # Only these two may run or style, whatever a name in the tables says, and nothing can be loaded from anywhere.
    policy = (
        f"default-src 'none'; script-src '{_sha256(script)}'; style-src '{_sha256(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("link", rel="icon", href="data:,"),
        el("title", f"Checkpoints of {report.place}"),
        el("style", Html(style)),
    )


def _header(report: Report, found: Sequence[Finding], titles: Sequence[str]) -> Html:
    return el(
        "header",
        el("h1", "Checkpoint report"),
        el("p", f"{report.place} · made {moment(report.made_at)} UTC · times are UTC, ages as of then", class_="where"),
        Html('<p class="stale" id="stale" hidden></p>'),
        sections.summary(report, found),
        el("nav", *(el("a", title, href=f"#{_anchor(title)}") for title in titles), aria_label="Sections"),
        Html("<noscript><p class='stale'>Charts need JavaScript; everything else is here without.</p></noscript>"),
    )


def _main(parts: Mapping[str, Html]) -> Html:
    return el("main", *(el("section", el("h2", title), part, id=_anchor(title)) for title, part in parts.items()))


def _footer() -> Html:
    made_by = f"checkpoint-catalog {version('checkpoint-catalog')}. One file, nothing is loaded from elsewhere."
    return el("footer", sections.guide(), el("p", made_by))


@cache
def _bundle(snippet: str) -> str:
    """Return a script with Vega, Vega-Lite and Vega-Embed in it."""
    script = vl_convert.javascript_bundle(snippet)
    # HTML ends a script there wherever it stands; inside JavaScript it can only be in a text.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _asset(name: str) -> str:
    return files("catalog.report").joinpath(name).read_text("utf-8")


def _sha256(inside: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
