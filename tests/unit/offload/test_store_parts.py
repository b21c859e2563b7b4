"""Opening stores, ending threads, and abandoned sinks."""

import errno
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from magnetar.disk.os_file import OsFile
from magnetar.offload import store_threads
from magnetar.offload.errors import ColdFileMissing, ColdStoreUnavailable, OffloadMisconfigured
from magnetar.offload.sinks import FolderSink
from magnetar.offload.store_threads import THREADS_PER_STORE_MAX, StoreThreads
from magnetar.offload.stores import (
    CONNECT_TIMEOUT_S,
    DEFAULT_REGION,
    REQUEST_TIMEOUT_S,
    RETRIES_MAX,
    RETRIES_TIMEOUT_S,
    RETRY_DELAY_S_MAX,
    RETRY_FIRST_DELAY_S,
    StoreSpec,
    open_object_store,
    store_error,
)

WAIT_S = 20.0


def opened(spec: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return open_object_store(spec)


@pytest.mark.parametrize("driver", ["aws-s3", "S3", "s3", "google-cloud-storage", "azureblob"])
@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:1", "https://127.0.0.1:1"])
@pytest.mark.parametrize("prefix", ["", "some/prefix"])
def test_a_store_is_opened_with_its_prefix_its_deadlines_and_bounded_retries(
    driver: str, endpoint: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(StoreSpec(driver, "bucket", "", endpoint, prefix), monkeypatch)
    assert (store.prefix or "") == prefix
    assert store.retry_config == {
        "max_retries": RETRIES_MAX,
        "retry_timeout": timedelta(seconds=RETRIES_TIMEOUT_S),
        "backoff": {
            "init_backoff": timedelta(seconds=RETRY_FIRST_DELAY_S),
            "max_backoff": timedelta(seconds=RETRY_DELAY_S_MAX),
            "base": 2,
        },
    }
    options = store.client_options
    assert options["connect_timeout"] == f"{CONNECT_TIMEOUT_S:g}s"
    assert options["timeout"] == f"{REQUEST_TIMEOUT_S:g}s"
    if endpoint and driver != "google-cloud-storage":
        assert str(options["allow_http"]).lower() == str(endpoint.startswith("http:")).lower()


@pytest.mark.parametrize(("region", "expected"), [("", DEFAULT_REGION), ("eu-west-1", "eu-west-1")])
@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:1"])
def test_a_bucket_has_a_region(
    region: str, expected: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(StoreSpec("S3", "bucket", region, endpoint), monkeypatch)
    assert store.config["region"] == expected
    assert store.config["bucket"] == "bucket"
    assert store.config.get("endpoint", "") == endpoint


def test_a_store_that_is_none_says_so() -> None:
    for spec in (StoreSpec("S3", ""), StoreSpec("x", "b"), StoreSpec("filesystem", "s3://b")):
        with pytest.raises(OffloadMisconfigured):
            open_object_store(spec)


def test_what_an_error_of_a_store_means() -> None:
    assert isinstance(store_error(FileNotFoundError("x"), "f"), ColdFileMissing)
    gone = store_error(FileNotFoundError("<Code>NoSuchBucket</Code>"), "f")
    assert type(gone) is ColdStoreUnavailable
    assert str(gone) == "f cannot be read: the store has no such bucket"
    assert str(store_error(OSError("first\nsecond"), "f")) == "f cannot be read now: first"
    assert str(store_error(OSError(), "f")) == "f cannot be read now: OSError"


def test_a_store_that_is_unused_for_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_threads, "IDLE_S", 0.0)
    threads = StoreThreads()
    thread = threads.submit("a", threading.current_thread).result(WAIT_S)
    assert (thread.name, thread.daemon) == ("store a", True)
    thread.join(WAIT_S)
    assert not threads._stores
    assert threads.submit("a", int).result(WAIT_S) == 0


def test_one_idle_thread_serves_the_next_call() -> None:
    threads = StoreThreads()
    first = threads.submit("a", threading.get_ident).result(WAIT_S)
    while not threads._stores["a"].idle:
        pass
    assert threads.submit("a", threading.get_ident).result(WAIT_S) == first
    assert threads._stores["a"].threads == 1


def test_a_thread_that_cannot_begin_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = StoreThreads()

    def cannot(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        with pytest.raises(ColdStoreUnavailable, match="a cannot be read now: can't start"):
            threads.submit("a", int)
    assert not threads._stores
    assert threads.submit("a", int).result(WAIT_S) == 0
    go = threading.Event()
    busy = [threads.submit("a", lambda: go.wait(WAIT_S)) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        with pytest.raises(ColdStoreUnavailable):
            threads.submit("a", int)
    store = threads._stores["a"]
    assert store.threads <= THREADS_PER_STORE_MAX
    assert not any(each.done() for each in busy)
    go.set()
    assert all(each.result(WAIT_S) for each in busy)
    assert not store.waiting


def test_a_call_that_is_cancelled_before_it_begins_is_not_made() -> None:
    threads, go, made = StoreThreads(), threading.Event(), []
    busy = [threads.submit("a", lambda: go.wait(WAIT_S)) for _ in range(THREADS_PER_STORE_MAX)]
    late = threads.submit("a", lambda: made.append(1))
    assert late.cancel()
    go.set()
    assert all(each.result(WAIT_S) for each in busy)
    assert threads.submit("a", int).result(WAIT_S) == 0
    assert made == []


def descriptors(path: Path) -> int:
    """How many open files of this process are this one."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(each) == str(path)
        except FileNotFoundError:
            continue  # that of the listing
    return found


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_sink_holds_no_file_after_its_end(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a" / "file"
    sink = FolderSink(tmp_path, path)
    sink.write(b"x" * 10)
    assert descriptors(path) > 0
    getattr(sink, end)()
    assert descriptors(path) == 0
    assert path.read_bytes() == (b"x" * 10 if end == "close" else b"")


def test_an_error_of_an_ordinary_file_is_raised(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path, tmp_path / "file")

    class Refusing(OsFile):
        def write(self, *_: object, **__: object) -> int:
            raise OSError(errno.EINVAL, "Invalid argument")

    ordinary = Refusing(tmp_path / "file", os.open(tmp_path / "file", os.O_RDWR))
    sink.abandon()
    sink._file = ordinary
    sink.write(b"x")
    with pytest.raises(OSError, match="Invalid argument"):
        sink.close()
    sink.abandon()
