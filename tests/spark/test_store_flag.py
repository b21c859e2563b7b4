"""The flag `--store` of jobs, and the older flags of the job `compact`."""

import argparse

import pytest

from magnetar.core.errors import PreconditionFailed
from magnetar.offload.stores import FILESYSTEM, StoreSpec
from magnetar_spark.jobs import compact, offload
from magnetar_spark.jobs.store_flag import store_of

ENDPOINT = "http://127.0.0.1:9000"


def parsed(*arguments: str, kind: str = "compact") -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    {"compact": compact, "offload": offload}[kind].add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("kind", ["compact", "offload"])
def test_both_jobs_take_the_same_urls(kind: str) -> None:
    url = f"s3://b/p?endpoint={ENDPOINT}&region=r"
    assert store_of(parsed("--store", url, kind=kind)) == StoreSpec(
        "aws-s3", "b", "r", ENDPOINT, "p"
    )
    assert store_of(parsed("--store", "/folder", kind=kind)) == StoreSpec(FILESYSTEM, "/folder")
    assert store_of(parsed(kind=kind)) is None


def test_the_older_flags_complete_the_url() -> None:
    older = ("--store-endpoint", ENDPOINT, "--store-region", "r")
    expected = StoreSpec("aws-s3", "b", "r", ENDPOINT)
    assert store_of(parsed("--store", "s3://b", *older)) == expected
    assert store_of(parsed("--store", f"s3://b?endpoint={ENDPOINT}&region=r", *older)) == expected
    assert store_of(parsed("--store", "file:///folder", *older)) == StoreSpec(FILESYSTEM, "/folder")
    assert store_of(parsed(*older)) is None


@pytest.mark.parametrize(
    ("option", "in_url", "flag"),
    [("region", "here", "there"), ("endpoint", ENDPOINT, "http://127.0.0.1:9001")],
)
def test_older_flags_that_contradict_the_url_are_refused(
    option: str, in_url: str, flag: str
) -> None:
    args = parsed("--store", f"s3://b?{option}={in_url}", f"--store-{option}", flag)
    with pytest.raises(PreconditionFailed, match=rf"--store-{option} .* write it once, as --store"):
        store_of(args)
