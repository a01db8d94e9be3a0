"""The report in a real browser: Chromium draws it, runs nothing that a name says, and loads nothing from elsewhere."""

import asyncio
import json
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from selenium.common.exceptions import NoAlertPresentException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from catalog import CheckpointManifest, CheckpointManifestV2, artifact_path, keys, new_uuid7
from catalog.cli.main import main
from catalog.cli.output import visible
from catalog.tables.port import Table
from catalog.tables.schema import arrow
from catalog.testing import FakeClock
from catalog.testing.native import NativeHarness

pytestmark = pytest.mark.prove

HOSTILE = "</script><script>hacked=1</script><!-- <img src=x onerror=hacked=2> \"'`${hacked=3}\u202e\u2028<b>"
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
DRAWN_TIMEOUT_S = 120

MARKS = """
const [id] = arguments;
return document.querySelectorAll(
  `#${id} .mark-symbol.role-mark path, #${id} .mark-rect.role-mark path`).length;
"""
TRY_TO_LOAD = """
const [address, count, done] = arguments, blocked = [];
document.addEventListener("securitypolicyviolation", event => {
  if (blocked.push(event.effectiveDirective) === count) done(blocked);
});
const add = (name, fields) => document.body.append(Object.assign(document.createElement(name), fields));
add("img", {src: address + "/img"});
add("script", {src: address + "/script"});
add("script", {textContent: "window.hacked = 4"});
add("link", {rel: "stylesheet", href: address + "/style"});
add("iframe", {src: address + "/frame"});
fetch(address + "/fetch").catch(() => {});
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report of a catalog whose names, operators, reasons and errors want to be markup."""
    folder = tmp_path_factory.mktemp("report") / "a <img src=x onerror=hacked=5>"
    clock = FakeClock(datetime.now(UTC) - timedelta(days=3))
    harness = NativeHarness(folder / "catalog", clock, durable=False, actor=HOSTILE)
    catalog = harness.catalog
    for stream, count in ((HOSTILE, 6), ("orders", 40)):
        store = catalog.store(stream)
        for number in range(1, count + 1):
            clock.advance(timedelta(minutes=30))
            state = b"x" * (2000 * number)
            store.save_with_state(CheckpointManifest.new(number, epoch=1), state)
        store.pin(2, HOSTILE)
        store.prune(count - 2)
    asyncio.run(_operators(catalog.checkpointer("clicks"), clock))
    catalog.run_drills()
    harness.lose_state(HOSTILE, keys.integer_key(5))
    failed = {"restored": False, "bytes": 1, "seconds": None, "error": HOSTILE}
    broken = {"depth": "hashes", "valid": False, "rules": [HOSTILE], "bytes": 1}
    rows = [
        {"stream": HOSTILE, "checkpoint_key": keys.integer_key(4), "event": event, "at": clock(), "actor": HOSTILE,
         "details": json.dumps(details)}
        for event, details in (("drilled", failed), ("verified", broken))
    ]  # fmt: skip
    catalog.engine.append(Table.EVENTS, [arrow(Table.EVENTS, rows)])
    policies = folder / "policies.toml"
    policies.write_text("[[retention]]\nlast = 3\n")
    file = folder / "report.html"
    with pytest.raises(SystemExit) as end:
        main(["report", str(folder / "catalog"), "--out", str(file), "--policies", str(policies)])
    assert end.value.code == 3
    return file


async def _operators(checkpointer, clock):
    for number in range(1, 6):
        clock.advance(timedelta(hours=1))
        id, operators = new_uuid7(), {}
        for operator in ("count", HOSTILE):
            data = b"x" * 1000 * number
            sha256 = await checkpointer.save_snapshot(id, operator, 0, data)
            path = artifact_path(id, operator, 0, delta=False)
            entry = {"partition_id": 0, "is_delta": False, "path": path, "size_bytes": len(data), "sha256": sha256}
            operators[operator] = {"partitions": [entry]}
        await checkpointer.save_manifest(CheckpointManifestV2.new(id, epoch=1, operators=operators))
        await checkpointer.update_latest(id)


def program(*names):
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail(f"there is no {names[0]}; on Debian: apt-get install chromium chromium-driver", pytrace=False)
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = ChromeOptions()
    options.binary_location = program("chromium", "chromium-browser", "google-chrome")
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, Service(program("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, page):
    """The page, drawn; the browser's logs begin with it."""
    browser.get("about:blank")
    for log in ("performance", "browser"):
        browser.get_log(log)
    open_page(browser, page)
    return browser


def open_page(browser, page):
    browser.get(page.as_uri())
    drawn = "return document.documentElement.dataset.charts === 'drawn'"
    WebDriverWait(browser, DRAWN_TIMEOUT_S).until(lambda one: one.execute_script(drawn))


def specs(browser):
    return json.loads(browser.find_element(By.ID, "charts").get_attribute("textContent"))


def rows_of(spec):
    (rows,) = spec["datasets"].values()
    return rows


def requests(browser):
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


def test_every_chart_has_a_mark_for_each_row_of_its_data(opened):
    found = specs(opened)
    assert set(found) == {
        *(f"chart-{one}" for one in ("timeline", "sizes", "verification", "drills", "speed", "retention")),
        *(f"chart-sharing-{number}" for number in (1, 2, 3)),
        "chart-operators-3",
    }
    marks = {id: opened.execute_script(MARKS, id) for id in found}
    assert marks == {id: len(rows_of(spec)) for id, spec in found.items()}
    assert min(marks.values()) > 0
    shown = [one.rect["width"] for one in opened.find_elements(By.CSS_SELECTOR, ".chart svg")]
    assert len(shown) == len(found)
    assert min(shown) > 300


def test_the_console_stays_empty_and_nothing_is_requested_but_the_page(opened, page):
    assert opened.get_log("browser") == []
    assert requests(opened) == [page.as_uri()]


def test_hostile_names_are_read_as_they_were_written_and_add_no_element(opened):
    with pytest.raises(NoAlertPresentException):
        _ = opened.switch_to.alert
    assert opened.execute_script("return window.hacked ?? null") is None
    tags = Counter(one.tag_name for one in opened.find_elements(By.CSS_SELECTOR, "body script, img, b, iframe"))
    assert tags == {"script": 2}
    shown = visible(HOSTILE)
    for where in (
        "#attention strong", "#streams td.name", "#size-and-growth h3", "#size-and-growth .legend li",
        "#size-and-growth td.id", "#faults td.name", "#faults code", "#restore-drills td.long", "#retention td.long",
    ):  # fmt: skip
        texts = [one.text for one in opened.find_elements(By.CSS_SELECTOR, where)]
        assert any(shown in text for text in texts), where
    axes = opened.execute_script("return document.querySelector('#chart-timeline').textContent")
    assert shown[:15] in axes
    assert "onerror=hacked=5" in opened.find_element(By.CSS_SELECTOR, ".where").text


@pytest.mark.parametrize("chart", ["chart-timeline", "chart-drills", "chart-operators-3"])
def test_a_tooltip_tells_of_its_mark_as_text(opened, chart):
    spec = specs(opened)[chart]
    name = visible(HOSTILE)
    rows = rows_of(spec)
    number = max(n for n, row in enumerate(rows) if name in (row.get("stream"), row["part"]))
    marks = opened.find_elements(By.CSS_SELECTOR, f"#{chart} .role-mark path")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", marks[number])
    ActionChains(opened).move_to_element(marks[number]).perform()
    tooltip = WebDriverWait(opened, 30).until(
        lambda one: next(iter(one.find_elements(By.CSS_SELECTOR, "#vg-tooltip-element.visible")), None)
    )
    assert name in tooltip.text
    assert rows[number]["checkpoint"] in tooltip.text
    inside = {one.tag_name for one in tooltip.find_elements(By.CSS_SELECTOR, "*")}
    assert inside == {"table", "tbody", "tr", "td"}
    assert opened.execute_script("return window.hacked ?? null") is None


def test_what_is_put_into_the_page_can_neither_run_nor_load(opened):
    asked = []
    expected = ["img-src", "script-src-elem", "script-src-elem", "style-src-elem", "frame-src", "connect-src"]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        blocked = opened.execute_async_script(TRY_TO_LOAD, f"http://127.0.0.1:{server.server_port}", len(expected))
        server.shutdown()
    assert asked == []
    assert Counter(blocked) == Counter(expected)
    assert opened.execute_script("return window.hacked ?? null") is None


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_its_window_in_light_and_dark(opened, page, width):
    grounds = {}
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for scheme in ("light", "dark"):
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        open_page(opened, page)
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
        wide = "return [...document.querySelectorAll('.chart svg')].map(one => one.getBoundingClientRect().right)"
        assert max(opened.execute_script(wide)) <= width
        grounds[scheme] = opened.execute_script(
            "return [document.body, document.querySelector('.chart svg text')]"
            ".map(one => [getComputedStyle(one).backgroundColor, getComputedStyle(one).fill])"
        )
    assert grounds["light"][0][0] != grounds["dark"][0][0], "the page's ground"
    assert grounds["light"][1][1] != grounds["dark"][1][1], "the charts' text"
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
