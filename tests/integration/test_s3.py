"""The native engine on S3: commits by conditional put, against a local server that honours it."""

import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from catalog.testing import CheckpointStoreSuite
from catalog.testing.native import NativeHarness


def put(address, data, **headers):
    request = urllib.request.Request(address, data, headers=headers, method="PUT")
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_the_server_honours_conditional_put(s3_options):
    address = s3_options["AWS_ENDPOINT_URL"] + "/bucket/once"
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda n: put(address, b"%d" % n, **{"If-None-Match": "*"}), range(40)))
    assert sorted(set(codes)) == [200, 412]
    assert codes.count(200) == 1


class TestStoreOnS3:
    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, s3_options):
        place = f"s3://bucket/{uuid.uuid4()}/catalog"
        return NativeHarness(place, storage_options=s3_options, maintain_every=7)

    stream = CheckpointStoreSuite.stream
    store = CheckpointStoreSuite.store

    test_full_manifest = CheckpointStoreSuite.test_a_full_manifest_and_a_bare_one_round_trip
    test_two_savers = CheckpointStoreSuite.test_of_two_savers_at_once_exactly_one_wins_and_the_other_is_told
    test_purge = CheckpointStoreSuite.test_after_the_undo_window_bytes_go_and_the_id_is_closed_for_ever
    test_damage = CheckpointStoreSuite.test_changed_or_lost_state_is_found_and_recovery_falls_back
