"""The public namespace and the error tree."""

import builtins
import copy
import inspect
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import catalog
from catalog import errors
from catalog.errors import CatalogError

ROOT = Path(catalog.__file__).parents[1]
ERRORS = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, CatalogError)]


class TestNamespace:
    def test_all_is_sorted_and_without_repetition(self):
        assert sorted(set(catalog.__all__)) == catalog.__all__

    def test_every_name_can_be_imported_and_has_a_docstring(self):
        assert all(inspect.getdoc(getattr(catalog, name)) for name in catalog.__all__)

    def test_everything_imported_into_the_namespace_is_public_on_purpose(self):
        offered = {
            name for name, value in vars(catalog).items() if not name.startswith("_") and not inspect.ismodule(value)
        }
        assert offered == set(catalog.__all__)

    def test_every_error_is_public(self):
        assert {error.__name__ for error in ERRORS} <= set(catalog.__all__)

    def test_importing_the_package_starts_nothing_and_does_not_import_spark(self):
        code = "import sys, catalog; print(*sorted({'pyspark', 'py4j', 'delta'} & set(sys.modules)), sep=',')"
        done = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


class TestErrorTree:
    @staticmethod
    def documented():
        """Return the parents of each error as the docstring's tree shows them."""
        parents, path = {}, []
        for line in errors.__doc__.splitlines():
            if not (match := re.match(r"([│├└─ ]*)([A-Z]\w+Error)(?: \((\w+)\))?", line)):
                continue
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            parents[match[2]] = (path[depth - 1] if depth else "Exception", *([match[3]] if match[3] else []))
        return parents

    def test_the_docstring_shows_every_error_with_its_parents(self):
        real = {error.__name__: tuple(base.__name__ for base in error.__bases__) for error in ERRORS}
        assert self.documented() == real

    def test_every_error_but_the_root_is_a_kind_of_the_root(self):
        assert all(issubclass(error, CatalogError) for error in ERRORS)
        assert len(ERRORS) == 28

    @pytest.mark.parametrize(
        ("error", "builtin"),
        [
            ("InvalidInputError", "ValueError"),
            ("SessionError", "RuntimeError"),
            ("NotACatalogError", "LookupError"),
            ("ReadOnlyError", "PermissionError"),
            ("ArtifactNotFoundError", "LookupError"),
            ("DeserializationError", "ValueError"),
            ("LockTimeoutError", "TimeoutError"),
            ("CheckpointStreamError", "OSError"),
            ("StreamClosedError", "ValueError"),
            ("UnknownHandleError", "LookupError"),
        ],
    )
    def test_errors_are_caught_as_the_natural_builtin_too(self, error, builtin):
        assert issubclass(getattr(errors, error), getattr(builtins, builtin))

    def test_conflict_and_unknown_outcome_are_never_taken_for_each_other(self):
        assert not issubclass(errors.UnknownOutcomeError, errors.ConflictError)
        assert not issubclass(errors.ConflictError, errors.UnknownOutcomeError)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
class TestFacts:
    def test_they_are_attributes_and_the_message_is_the_text(self, error):
        made = error("what, and what to do", stream="s", key="k", path="/x")
        assert str(made) == made.message == "what, and what to do"
        assert (made.stream, made.key, made.path) == ("s", "k", "/x")

    @pytest.mark.parametrize("again", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy], ids=["pickle", "copy"])
    def test_they_survive_the_way_to_another_process(self, error, again):
        found = again(error("what, and what to do", stream="s", at=5))
        assert type(found) is error
        assert (str(found), found.message, found.stream, found.at) == (*["what, and what to do"] * 2, "s", 5)
