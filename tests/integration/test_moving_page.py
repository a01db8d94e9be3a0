"""What docs/MOVING.md shows is what happens."""

import re
import shlex
from pathlib import Path

import pytest

from catalog import Layout
from catalog.cli.main import main
from tests import sources
from tests.sources import put, taken

PAGE = Path(__file__).parents[2] / "docs" / "MOVING.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def settled(text):
    """Return output without what differs from run to run, and with hashes as short as the page has them."""
    text = re.sub(r"in \d+\.\d+ s", "in N s", text)
    return re.sub(r"\b([0-9a-f]{6})[0-9a-f]{58}\b", r"\1…", text).strip()


def test_every_command_of_the_page_prints_what_it_says(tmp_path, capsys):
    files = sources.objects([1, 2, 3]) | {"checkpoints/state-000003.bin": b"state", "notes.txt": b"by hand"}
    put(tmp_path / "bucket", files)
    blocks = BLOCK.findall(PAGE.read_text("utf-8").replace("/tmp/moving", str(tmp_path)))
    assert [shlex.split(command)[1] for command, _ in blocks] == ["import", "recover", "export"]
    for command, shown in blocks:
        with pytest.raises(SystemExit) as end:
            main(shlex.split(command)[1:])
        assert end.value.code in (0, 3)
        assert settled(capsys.readouterr().out) == settled(shown)
    changed = {"notes.txt": None, "manifests/latest.json": b'{"checkpoint_id":2}'}
    expected = {name: changed.get(name, data) for name, data in files.items()}
    assert taken(tmp_path / "out") == {name: data for name, data in expected.items() if data is not None}


def test_every_layout_is_on_the_page():
    assert re.findall(r"^\| `(\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE) == list(Layout)
