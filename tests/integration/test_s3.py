"""Both engines on S3, against a local server: native commits by conditional put, and Spark's rule."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from catalog import CatalogError, CheckpointCatalog, CheckpointManifest, NotACatalogError
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


@pytest.mark.parametrize("create", [False, True])
def test_storage_that_cannot_be_reached_is_not_taken_for_a_place_without_a_catalog(s3_options, create):
    options = {**s3_options, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "max_retries": "0"}
    with pytest.raises(CatalogError, match="cannot be reached or read") as told:
        CheckpointCatalog.native("s3://bucket/catalog", storage_options=options, create=create)
    assert not isinstance(told.value, NotACatalogError)


SPARK_ON_S3 = """
import json, sys
from catalog import CheckpointCatalog, CheckpointManifest, ReadOnlyError
from catalog.session import build_session

place, options = sys.argv[1], json.loads(sys.argv[2])
modules = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
jars = ["org.apache.hadoop:hadoop-aws:3.5.0", *(f"software.amazon.awssdk:{one}:2.35.4" for one in modules)]
spark = build_session(settings={
    "spark.jars.packages": ",".join(jars),
    "spark.jars.excludes": "software.amazon.awssdk:bundle",  # 600 MB, of which the modules above are enough
    "spark.hadoop.fs.s3a.endpoint": options["AWS_ENDPOINT_URL"],
    "spark.hadoop.fs.s3a.endpoint.region": options["AWS_REGION"],
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.access.key": options["AWS_ACCESS_KEY_ID"],
    "spark.hadoop.fs.s3a.secret.key": options["AWS_SECRET_ACCESS_KEY"],
})
store = CheckpointCatalog.for_path(spark, place).store("s")
print(store.list_ids(), store.load_state_data(1))
for refused in (lambda: store.save(CheckpointManifest.new(2, epoch=1)), lambda: store.cleanup_orphans()):
    try:
        refused()
    except ReadOnlyError as error:
        print(type(error).__name__, "native engine" in str(error))
alone = CheckpointCatalog.for_path(spark, place, single_writer=True).store("s")
alone.save_with_state(CheckpointManifest.new(2, epoch=1), b"by Spark")
"""


@pytest.mark.prove
def test_spark_reads_on_s3_and_writes_there_only_as_the_single_writer(s3_options):
    place = f"bucket/{uuid.uuid4()}/catalog"
    store = CheckpointCatalog.native(f"s3://{place}", create=True, storage_options=s3_options).store("s")
    store.save_with_state(CheckpointManifest.new(1, epoch=1), b"by native")
    command = [sys.executable, "-c", SPARK_ON_S3, f"s3a://{place}", json.dumps(s3_options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[1] b'by native'", "ReadOnlyError True", "ReadOnlyError True"], done.stderr
    assert store.list_ids() == [1, 2]
    assert store.load_state_data(2) == b"by Spark"
