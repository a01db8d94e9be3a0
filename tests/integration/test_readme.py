"""What the README shows is what happens."""

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def settled(text):
    """Return output without what differs from run to run: durations, and white space at line ends."""
    text = re.sub(r"in (\d+\.\d+|N) s", "in N s", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def test_every_example_of_the_readme_prints_what_it_says(spark, tmp_path):
    place = str(tmp_path / "first-catalog")
    blocks = [
        (kind, text.replace("/tmp/first-catalog", place)) for kind, text in BLOCK.findall(README.read_text("utf-8"))
    ]
    assert [kind for kind, _ in blocks] == ["python", "text"] * 10
    names = {"__name__": "readme"}
    for (_, code), (_, shown) in zip(blocks[::2], blocks[1::2], strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        assert settled(printed.getvalue()) == settled(shown)
    assert names["spark"] is spark


def test_every_file_the_readme_points_to_is_there():
    targets = re.findall(r"\]\(([^)]+)\)", README.read_text("utf-8"))
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []
