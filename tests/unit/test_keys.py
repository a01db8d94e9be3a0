"""Names and ids at the boundary, and the keys they are stored under."""

import re
import sys
import threading
import uuid
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog import keys
from catalog.errors import InvalidInputError
from catalog.keys import EMPTY_STREAM, U64_MAX, Uuid7Source

V7 = "0190163d-8694-739b-aea5-966c26f8ad91"
V4 = "7d444840-9dc0-41d1-b245-5ffdce74fad2"
HUGE = 10**5000
"""Too long to be printed: str() of it is a ValueError."""


class TestIntegerIds:
    @pytest.mark.parametrize("value", [1, 999_999, 1_000_000, 2**63 - 1, 2**63, U64_MAX])
    def test_any_u64_from_one_is_an_id_and_comes_back(self, value):
        key = keys.integer_key(value)
        assert re.fullmatch("[0-9]{20}", key)
        assert keys.checkpoint_id(key) == value

    @pytest.mark.parametrize(
        "value",
        [0, -1, -(2**63), 2**64, HUGE, -HUGE, True, False, 1.0, float("nan"), "1", "", b"1", None, [1], 1j],
        ids=lambda value: repr(value) if not isinstance(value, int) or value.bit_length() < 99 else "huge",
    )
    def test_what_is_no_u64_from_one_is_refused(self, value):
        with pytest.raises(InvalidInputError, match="checkpoint_id"):
            keys.integer_key(value)

    def test_zero_is_an_id_where_the_caller_says_so(self):
        assert keys.integer_key(0, minimum=0) == "0" * 20
        with pytest.raises(InvalidInputError):
            keys.integer_key(-1, minimum=0)

    def test_a_refusal_names_what_was_wrong_and_keeps_the_value(self):
        with pytest.raises(InvalidInputError, match="keep_count must be from 0 to 2\\^64-1, not -3") as caught:
            keys.u64(-3, "keep_count")
        assert (caught.value.what, caught.value.value) == ("keep_count", -3)

    @pytest.mark.parametrize("below", [1, 9, 999_999, 2**31 - 1, 2**53, 2**63 - 1, U64_MAX - 1])
    def test_keys_sort_by_age_across_every_border(self, below):
        assert keys.integer_key(below) < keys.integer_key(below + 1)

    @settings(deadline=None)
    @given(st.lists(st.integers(1, U64_MAX)))
    def test_sorted_keys_are_sorted_ids(self, ids):
        assert sorted(map(keys.integer_key, ids)) == [keys.integer_key(one) for one in sorted(ids)]


class TestUuid7:
    def test_a_uuid7_is_its_own_key_as_text_or_object(self):
        assert keys.uuid7(V7) == keys.uuid7(uuid.UUID(V7)) == V7
        assert keys.checkpoint_id(V7) == V7

    def test_upper_case_is_made_canonical(self):
        assert keys.uuid7(V7.upper()) == V7

    @pytest.mark.parametrize(
        "value",
        [
            V4,
            uuid.UUID(V4),
            "00000000-0000-0000-0000-000000000000",
            V7.replace("-aea5-", "-cea5-"),  # version 7, but of another variant
            V7[:-1],
            V7 + "0",
            V7 + "/operators",
            "not a uuid",
            "",
            "..",
            7,
            -1,
            7.0,
            True,
            None,
            V7.encode(),
            [V7],
        ],
        ids=repr,
    )
    def test_everything_else_is_refused(self, value):
        with pytest.raises(InvalidInputError, match="UUID version 7"):
            keys.uuid7(value)

    @pytest.mark.parametrize(
        "text",
        [
            "0x90163d-8694-739b-aea5-966c26f8ad91",
            "\u0660190163d-8694-739b-aea5-966c26f8ad91",  # an Arabic zero
            "0190163d-8694-739b-aea5-966c26f8a_91",
            " 190163d-8694-739b-aea5-966c26f8ad91",
        ],
        ids=ascii,
    )
    def test_text_that_only_python_reads_as_hex_digits_is_refused(self, text):
        with pytest.raises(InvalidInputError):
            keys.uuid7(text)

    def test_an_integer_too_long_to_print_is_refused_like_any_other(self):
        with pytest.raises(InvalidInputError):
            keys.uuid7(HUGE)


class TestIdsOfEitherKind:
    @pytest.mark.parametrize("value", [7, "7", "07", "0" * 5000 + "7"], ids=lambda value: str(value)[:3])
    def test_an_integer_also_as_digits_is_an_id(self, value):
        assert keys.any_key(value) == keys.integer_key(7)

    def test_zero_and_the_largest_are_ids_as_digits_too_and_a_uuid_is_its_own_key(self):
        assert keys.any_key("000") == keys.any_key(0) == "0" * 20
        assert keys.any_key(str(U64_MAX)) == keys.integer_key(U64_MAX)
        assert keys.any_key(V7.upper()) == V7

    @pytest.mark.parametrize("digits", [str(U64_MAX + 1), "9" * 39, "9" * 40, "9" * 5000], ids=len)
    def test_digits_beyond_u64_are_refused_however_many(self, digits):
        shown = digits if len(digits) < 39 else "one that is far too large"
        with pytest.raises(InvalidInputError, match=f"checkpoint_id must be from 0 to 2\\^64-1, not {shown}$"):
            keys.any_key(digits)

    @pytest.mark.parametrize("value", ["latest", "", "-1", "٣", V4, 1.0, None])
    def test_what_is_neither_is_told_both_kinds(self, value):
        with pytest.raises(InvalidInputError, match="checkpoint_id must be an integer or a UUID version 7, not "):
            keys.any_key(value)


class TestUuid7Source:
    def test_what_it_makes_is_a_canonical_uuid7_of_this_millisecond(self):
        before = keys.now_ms()
        made = Uuid7Source()()
        assert keys.uuid7(made) == made
        assert before <= uuid.UUID(made).int >> 80 <= keys.now_ms()

    def test_ids_rise_strictly_inside_one_millisecond(self, monkeypatch):
        monkeypatch.setattr(keys.time, "time_ns", lambda: 1_700_000_000_000_000_000)
        make = Uuid7Source()
        made = [make() for _ in range(5000)]  # more than the 12 bits below a millisecond
        assert all(one < other for one, other in pairwise(made))

    def test_ids_rise_also_when_the_clock_goes_back(self, monkeypatch):
        times = iter([1_700_000_000_000_000_000, 1_600_000_000_000_000_000])
        monkeypatch.setattr(keys.time, "time_ns", lambda: next(times))
        make = Uuid7Source()
        assert make() < make()

    @pytest.fixture
    def hasty(self):
        """Threads that change places as often as Python lets them."""
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        yield
        sys.setswitchinterval(interval)

    @pytest.mark.usefixtures("hasty")
    def test_ids_rise_strictly_in_every_thread_and_are_never_made_twice(self, monkeypatch):
        monkeypatch.setattr(keys.time, "time_ns", lambda: 1_700_000_000_000_000_000)
        make = Uuid7Source()
        barrier = threading.Barrier(4)
        made = [[] for _ in range(4)]

        def work(mine):
            barrier.wait()
            mine.extend(make() for _ in range(2000))

        threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(one < other for mine in made for one, other in pairwise(mine))
        # Random bits would hide two equal ticks; the part above them must differ by itself.
        ticks = [uuid.UUID(one).int >> 64 for mine in made for one in mine]
        assert len(set(ticks)) == len(ticks) == 8000


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "",
            " ",
            "a b",
            "a/b",
            "../..",
            ".",
            "'",
            '"',
            "`",
            "``",
            "a=b",
            "%",
            "%2F",
            "\\",
            "\n",
            "\0",
            "🚀",
            "ß",
            "a" * 512,
        ],
        ids=ascii,
    )
    def test_any_text_up_to_512_characters_is_a_name(self, name):
        assert keys.text(name, "name") == name

    def test_512_characters_are_characters_and_not_bytes(self):
        assert keys.text("🚀" * 512, "name") == "🚀" * 512

    @pytest.mark.parametrize(
        "name", ["a" * 513, "🚀" * 513, "\ud800", "ok\udfff", 1, 1.0, True, None, b"a", ["a"]], ids=ascii
    )
    def test_what_is_no_such_text_is_refused(self, name):
        with pytest.raises(InvalidInputError, match="operator name") as caught:
            keys.text(name, "operator name")
        assert caught.value.what == "operator name"
        str(caught.value).encode()  # the message itself can be written to any log


class TestStreams:
    def test_the_empty_prefix_is_a_stream_under_a_reserved_name(self):
        assert keys.stream_key("") == EMPTY_STREAM != ""
        assert keys.stream_label(EMPTY_STREAM) == ""

    def test_no_caller_can_use_the_reserved_name(self):
        with pytest.raises(InvalidInputError, match="reserved"):
            keys.stream_key(EMPTY_STREAM)

    def test_no_stream_has_the_name_that_spark_takes_for_null(self):
        with pytest.raises(InvalidInputError, match="means NULL to Spark: take another name"):
            keys.stream_key("__HIVE_DEFAULT_PARTITION__")

    def test_a_trailing_slash_is_significant(self):
        assert len({keys.stream_key(name) for name in ("job", "job/", "job//", "/job")}) == 4

    @settings(deadline=None)
    @given(st.text(max_size=40).filter(lambda name: name != EMPTY_STREAM))
    def test_a_name_comes_back_as_it_was(self, name):
        assert keys.stream_label(keys.stream_key(name)) == name

    @pytest.mark.parametrize("name", ["a" * 513, "\ud800", None, 5, b"job"], ids=ascii)
    def test_what_is_no_name_is_refused(self, name):
        with pytest.raises(InvalidInputError, match="stream name"):
            keys.stream_key(name)
