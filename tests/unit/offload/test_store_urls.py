"""URLs of stores: the one grammar of `--store` in all jobs."""

import pytest

from magnetar.core.errors import PreconditionFailed
from magnetar.offload.stores import FILESYSTEM, StoreSpec, parse_store

ENDPOINT = "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://b", StoreSpec("aws-s3", "b")),
        ("S3://b/p/q/", StoreSpec("aws-s3", "b", prefix="p/q")),
        (
            f"s3://b/some/prefix/?region=eu-west-1&endpoint={ENDPOINT}",
            StoreSpec("aws-s3", "b", "eu-west-1", ENDPOINT, "some/prefix"),
        ),
        ("s3://b/my prefix", StoreSpec("aws-s3", "b", prefix="my prefix")),
        ("gs://b/p", StoreSpec("google-cloud-storage", "b", prefix="p")),
        ("az://container/p", StoreSpec("azureblob", "container", prefix="p")),
        ("file:///a%20b/c", StoreSpec(FILESYSTEM, "/a b/c")),
        ("/folder", StoreSpec(FILESYSTEM, "/folder")),
        ("/a%20b?c#d", StoreSpec(FILESYSTEM, "/a%20b?c#d")),
    ],
)
def test_stores(url: str, expected: StoreSpec) -> None:
    assert parse_store(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        *("", "b", "folder/below", "file:a", "file://", "http:///a", "http://b", "x:///a"),
        *("s3://", "s3:///b", "s3://b?zone=1", "s3://b?region=a&zone=1"),
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(PreconditionFailed, match=r"write s3://BUCKET.* file:///FOLDER"):
        parse_store(url)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_escapes_that_the_jobs_read_differently_are_refused(scheme: str) -> None:
    with pytest.raises(PreconditionFailed, match=f"escapes: {scheme}://b/my prefix/100%$"):
        parse_store(f"{scheme}://b/my%20prefix/100%25")


def test_a_folder_has_no_options() -> None:
    with pytest.raises(PreconditionFailed, match="write file:///FOLDER"):
        parse_store("file:///folder?region=eu-west-1")
