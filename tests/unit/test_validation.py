"""Every rule of validation that a manifest's own fields decide, with its severity."""

import pytest

from catalog.handles import InlineHandle
from catalog.manifest import CheckpointManifest
from catalog.validation import Issue, ValidationResult, failure, manifest_issues

CONNECTOR = {"offsets": {}, "epoch": 1}
SOUND = InlineHandle.of(b"a").model_dump()


def issues(expected_vnodes=256, **fields):
    """Return the findings of a manifest that has none but what these fields bring."""
    whole = {"version": 1, "checkpoint_id": 1, "epoch": 1, "timestamp_ms": 1, "vnode_count": 256, **fields}
    return manifest_issues(CheckpointManifest.from_dict(whole), expected_vnodes)


def found(expected_vnodes=256, **fields):
    return [(issue.rule, issue.severity) for issue in issues(expected_vnodes, **fields)]


def test_a_good_manifest_has_no_issues():
    good = {
        "sink_epochs": {"a": 1, "b": 1},
        "sink_commit_statuses": {"a": "Pending", "b": {"Failed": "x"}, "c": "Committed"},
        "source_names": ["k", "l"],
        "source_offsets": {"k": CONNECTOR},
        "operator_states": {
            "in": {"state_b64": "YQ=="},
            "empty": {"state_b64": ""},
            "out": {"external": True},
            "no": {},
        },
        "operator_handles": {"in": {"x": SOUND}},
    }
    assert issues(**good) == []


@pytest.mark.parametrize(
    ("fields", "rule", "says"),
    [
        ({"checkpoint_id": 0}, "id_zero", "checkpoint_id is 0"),
        ({"epoch": 0}, "epoch_zero", "epoch is 0"),
        ({"operator_states": {"win": {"state_b64": "?"}}}, "inline_state_unreadable", "operator 'win'"),
        *(
            ({"operator_handles": {"win": {"x": {**SOUND, **wrong}}}}, "inline_state_unreadable", "'win', handle 'x'")
            for wrong in ({"state_b64": "?"}, {"size_bytes": 5}, {"sha256": "0" * 64})
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_integrity_failure(fields, rule, says):
    (issue,) = issues(**fields)
    assert (issue.rule, issue.severity) == (rule, "integrity")
    assert says in str(issue)


@pytest.mark.parametrize(
    ("fields", "rule", "says"),
    [
        ({"version": 0}, "version_zero", "version is 0"),
        ({"timestamp_ms": 0}, "timestamp_zero", "timestamp_ms is 0"),
        ({"vnode_count": 0}, "vnode_count_legacy", "vnode_count is 0"),
        ({"vnode_count": 255}, "vnode_count_mismatch", "255, 256 is expected"),
        ({"sink_epochs": {"a": 1}, "sink_commit_statuses": {"b": "Committed"}}, "sink_without_status", "'a'"),
        ({"source_offsets": {"a": CONNECTOR}, "source_names": ["b"]}, "source_unknown", "'a'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_warning(fields, rule, says):
    (issue,) = issues(**fields)
    assert (issue.rule, issue.severity) == (rule, "warning")
    assert says in str(issue)


def test_sinks_without_a_status_are_odd_only_when_there_are_statuses_at_all():
    assert found(sink_epochs={"a": 1, "b": 2}) == []


def test_sources_without_a_name_are_odd_only_when_there_are_names_at_all():
    assert found(source_offsets={"a": CONNECTOR, "b": CONNECTOR}) == []


def test_every_sink_and_source_is_named_by_itself():
    rules = found(
        sink_epochs={"a": 1, "b": 1, "c": 1},
        sink_commit_statuses={"c": "Pending"},
        source_offsets={"a": CONNECTOR, "b": CONNECTOR},
        source_names=["c"],
    )
    assert rules == [("sink_without_status", "warning")] * 2 + [("source_unknown", "warning")] * 2


def test_every_unreadable_operator_is_named_by_itself():
    states = {"a": {"state_b64": "?"}, "b": {"state_b64": "YQ"}, "c": {"state_b64": "YQ=="}}
    assert found(operator_states=states) == [("inline_state_unreadable", "integrity")] * 2


def test_the_vnode_count_is_compared_with_the_stores_and_a_legacy_one_only_called_legacy():
    assert found(expected_vnodes=128) == [("vnode_count_mismatch", "warning")]
    assert found(expected_vnodes=128, vnode_count=128) == []
    assert found(expected_vnodes=0, vnode_count=0) == [("vnode_count_legacy", "warning")]
    legacy = CheckpointManifest.from_json('{"version":1,"checkpoint_id":1,"epoch":1,"timestamp_ms":1}')
    assert [issue.rule for issue in manifest_issues(legacy, 128)] == ["vnode_count_legacy"]


def test_findings_do_not_hide_each_other():
    assert found(version=0, checkpoint_id=0, epoch=0, timestamp_ms=0) == [
        ("id_zero", "integrity"),
        ("epoch_zero", "integrity"),
        ("version_zero", "warning"),
        ("timestamp_zero", "warning"),
    ]


class TestResult:
    WARNING = Issue("warning", "odd", "odd")
    FAILURE = failure("bad", "bad")

    def test_valid_means_no_integrity_failure(self):
        assert ValidationResult(1).valid
        assert ValidationResult(1, (self.WARNING,)).valid
        assert not ValidationResult(1, (self.WARNING, self.FAILURE)).valid

    def test_warnings_and_failures_are_told_apart(self):
        result = ValidationResult(1, (self.WARNING, self.FAILURE))
        assert (result.warnings, result.failures) == ((self.WARNING,), (self.FAILURE,))
        assert self.FAILURE.severity == "integrity"
