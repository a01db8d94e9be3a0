"""What tests of the command line share: `ckpt` as a process, and in this one."""

import os
import subprocess
import sys

import pytest

from catalog.cli.main import main


@pytest.fixture(scope="session")
def ckpt():
    """Run `ckpt` as a process of its own, with its output going into pipes."""

    def run(*arguments, cwd=None, **environment):
        kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
        return subprocess.run(
            [sys.executable, "-m", "catalog.cli.main", *map(str, arguments)],
            # As narrow as can be: where nobody looks, nothing is to be folded or cut.
            env={**kept, "COLUMNS": "20", "JAVA_HOME": "/nowhere", **environment},
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def here(capsys):
    """Run `ckpt` in this process, which is quicker: gives exit code, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(one) for one in arguments])
        return end.value.code or 0, *capsys.readouterr()

    return run
