"""A session's settings and the checks before it starts, without a JVM."""

import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from catalog.errors import SessionError
from catalog.session import (
    IVY_SETTINGS_VARIABLE,
    JARS_VARIABLE,
    LOCAL_SETTINGS,
    check_java,
    default_settings,
    delta_package,
    fetching_alone,
    jar_settings,
    merge,
)

NEEDED_JARS = (
    "io.delta_delta-spark_4.2_2.13-4.4.0.jar",  # Ivy puts the group in front
    "delta-storage-4.4.0.jar",
    "delta-kernel-api-4.4.0.jar",
    "delta-kernel-defaults-4.4.0.jar",
)


def fake_java(folder: Path, prints: str) -> Path:
    """Put an executable `java` into a folder that prints this on stderr, as `java -version` does."""
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{prints}' >&2\n")
    java.chmod(0o755)
    return java


def test_importing_the_module_does_not_import_pyspark() -> None:
    code = "import sys, catalog.session; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestMerge:
    def test_a_later_layer_wins(self) -> None:
        assert merge({"a": "1", "b": "1"}, {"b": "2", "c": "2"}, {"c": "3"}) == {"a": "1", "b": "2", "c": "3"}

    def test_java_options_are_appended_and_the_callers_stay_as_they_are(self) -> None:
        own = {"spark.driver.extraJavaOptions": "--add-opens a=b --add-opens c=d"}
        merged = merge({"spark.driver.extraJavaOptions": "-Duser.timezone=UTC"}, own)
        assert merged["spark.driver.extraJavaOptions"] == "-Duser.timezone=UTC --add-opens a=b --add-opens c=d"

    def test_a_callers_packages_and_extensions_do_not_push_delta_out(self) -> None:
        merged = merge(
            {"spark.jars.packages": "delta", "spark.sql.extensions": "Delta"},
            {"spark.jars.packages": "kafka", "spark.sql.extensions": "Mine,Delta"},
        )
        assert merged == {"spark.jars.packages": "delta,kafka", "spark.sql.extensions": "Mine,Delta"}


class TestDefaults:
    @pytest.mark.parametrize("master", [None, "local[2]", "local[*]", "local-cluster[2,1,1024]"])
    def test_this_machine_gets_the_local_settings(self, master: str | None) -> None:
        assert default_settings(master).items() >= LOCAL_SETTINGS.items()

    def test_a_cluster_does_not_get_the_local_settings(self) -> None:
        assert not default_settings("spark://host:7077").keys() & LOCAL_SETTINGS.keys()

    def test_the_master_is_left_to_spark(self) -> None:
        assert "spark.master" not in default_settings(None)

    def test_workers_run_this_python_unless_the_environment_names_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        assert default_settings(None)["spark.pyspark.python"] == sys.executable
        monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
        assert default_settings(None)["spark.pyspark.python"] == "/opt/python"


class TestJars:
    def test_they_are_downloaded_by_default_without_what_spark_ships(self) -> None:
        found = jar_settings({})
        assert found["spark.jars.packages"] == delta_package() == "io.delta:delta-spark_4.2_2.13:4.4.0"
        assert "org.apache.hadoop:hadoop-client-*" in found["spark.jars.excludes"].split(",")
        assert "spark.jars.ivySettings" not in found

    def test_a_mirror_is_named_by_an_ivy_settings_file(self, tmp_path: Path) -> None:
        ivy_settings = tmp_path / "ivysettings.xml"
        ivy_settings.touch()
        assert jar_settings({IVY_SETTINGS_VARIABLE: str(ivy_settings)})["spark.jars.ivySettings"] == str(ivy_settings)

    def test_an_ivy_settings_file_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SessionError, match=rf"^{IVY_SETTINGS_VARIABLE} is .*nowhere\.xml, which is not a file: "):
            jar_settings({IVY_SETTINGS_VARIABLE: str(tmp_path / "nowhere.xml")})

    def test_a_folder_gives_all_its_jars_and_nothing_is_downloaded(self, tmp_path: Path) -> None:
        for name in (*NEEDED_JARS, "more.jar", "notes.txt"):
            (tmp_path / name).touch()
        found = jar_settings({JARS_VARIABLE: str(tmp_path), IVY_SETTINGS_VARIABLE: "ignored"})
        assert found.keys() == {"spark.jars"}
        assert found["spark.jars"].split(",") == sorted(str(tmp_path / name) for name in (*NEEDED_JARS, "more.jar"))

    def test_a_relative_folder_becomes_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in NEEDED_JARS:
            (tmp_path / name).touch()
        monkeypatch.chdir(tmp_path)
        assert all(Path(jar).is_absolute() for jar in jar_settings({JARS_VARIABLE: "."})["spark.jars"].split(","))

    def test_a_folder_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SessionError, match=rf"^{JARS_VARIABLE} is .*nowhere, where there is no delta-spark_"):
            jar_settings({JARS_VARIABLE: str(tmp_path / "nowhere")})

    @pytest.mark.parametrize("lacking", NEEDED_JARS)
    def test_a_folder_that_lacks_a_jar_is_refused(self, tmp_path: Path, lacking: str) -> None:
        for name in set(NEEDED_JARS) - {lacking}:
            (tmp_path / name).touch()
        with pytest.raises(SessionError, match=r"where there is no delta-[a-z-]+[_-]\*\.jar: put io\.delta:"):
            jar_settings({JARS_VARIABLE: str(tmp_path)})


class TestJava:
    def test_none_at_all_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SessionError, match=r"there is none in JAVA_HOME or on PATH: install Java 17 or newer"):
            check_java({"PATH": str(tmp_path)})

    def test_a_wrong_java_home_is_refused_even_with_java_on_the_path(self, tmp_path: Path) -> None:
        fake_java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
        with pytest.raises(SessionError, match=r"there is none in JAVA_HOME, which is .*nowhere: install Java 17"):
            check_java({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "nowhere")})

    @pytest.mark.parametrize(("text", "major"), [("1.8.0_392", 8), ("11.0.22", 11), ("16", 16)])
    def test_an_old_one_is_refused(self, tmp_path: Path, text: str, major: int) -> None:
        java = fake_java(tmp_path, f'openjdk version "{text}" 2024-01-16')
        with pytest.raises(SessionError, match=rf"^{java} is Java {major}, too old for Spark: install Java 17"):
            check_java({"PATH": str(tmp_path)})

    def test_one_that_does_not_run_is_refused(self, tmp_path: Path) -> None:
        fake_java(tmp_path, "Unable to locate a Java Runtime.")
        with pytest.raises(SessionError, match=r"does not answer `java -version`"):
            check_java({"PATH": str(tmp_path)})

    @pytest.mark.parametrize("text", ["17", "17.0.15", "21-ea", "25.0.1"])
    def test_a_new_one_is_taken(self, tmp_path: Path, text: str) -> None:
        fake_java(tmp_path, f'Picked up JAVA_TOOL_OPTIONS: -Dx=y\nopenjdk version "{text}" 2025-04-15')
        check_java({"PATH": str(tmp_path)})

    def test_java_home_comes_before_the_path(self, tmp_path: Path) -> None:
        fake_java(tmp_path / "path", 'openjdk version "1.8.0_392"')
        fake_java(tmp_path / "home" / "bin", 'openjdk version "21.0.2" 2024-01-16')
        check_java({"PATH": str(tmp_path / "path"), "JAVA_HOME": str(tmp_path / "home")})


def test_jars_are_fetched_by_one_process_at_a_time(tmp_path: Path) -> None:
    settings = {"spark.jars.packages": "a:b:1", "spark.jars.ivy": str(tmp_path / "ivy")}
    other = FileLock(tmp_path / "ivy" / "checkpoint-catalog.lock")
    with fetching_alone(settings), pytest.raises(Timeout):
        other.acquire(timeout=0)
    other.acquire(timeout=0)


def test_jars_of_a_folder_are_not_fetched_and_wait_for_nobody(tmp_path: Path) -> None:
    with fetching_alone({"spark.jars": "a.jar", "spark.jars.ivy": str(tmp_path / "ivy")}):
        assert not (tmp_path / "ivy").exists()


def test_a_folder_for_jars_that_cannot_be_written_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = {"spark.jars.packages": "a:b:1", "spark.jars.ivy": str(tmp_path / "file" / "ivy")}
    with (
        pytest.raises(SessionError, match=r"file/ivy, which cannot be written .*spark\.jars\.ivy"),
        fetching_alone(settings),
    ):
        pass
