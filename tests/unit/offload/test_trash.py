"""The trash: files stay on record until their stores have deleted them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.stage import turns

from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryStore
from magnetar.offload import cold, trash
from magnetar.offload.cold import ColdLedgers
from magnetar.offload.stores import FILESYSTEM, StoreSpec
from magnetar.offload.trash import (
    TRASH_PREFIX,
    TrashedFile,
    decode_trash,
    empty_trash,
    put_in_trash,
)

NAME = "public/default/persistent/t"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


def file_in(folder: Path, name: str) -> TrashedFile:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"nobody needs it")
    return TrashedFile(StoreSpec(FILESYSTEM, str(folder)), name)


async def on_record(store: MemoryStore) -> list[str]:
    records = [decode_trash(each.key, each.value) for each in await store.list(TRASH_PREFIX)]
    return sorted(file.path for record in records for file in record.files)


async def test_what_a_store_has_that_is_not_there_stays_on_record(
    store: MemoryStore, tmp_path: Path
) -> None:
    away, here = tmp_path / "away", tmp_path / "here"
    mixed = [file_in(away, "a"), file_in(here, "b"), file_in(away, "c")]
    await store.transact([put_in_trash(NAME, mixed, 1)])
    await store.transact([put_in_trash(NAME, [file_in(here, "d")], 1)])
    await store.put(f"{TRASH_PREFIX}broken", b"unreadable")
    away.rename(tmp_path / "unmounted")
    done = await empty_trash(store)
    assert done.files == 2
    assert [what.partition(",")[0] for what, _ in done.left] == [
        f"{TRASH_PREFIX}broken",
        f"filesystem:{away}",
    ]
    assert list(here.iterdir()) == []
    assert not away.exists()
    away.mkdir()  # as where a volume is to be mounted
    revision = await store.revision()
    await empty_trash(store)
    assert await store.revision() == revision, "nothing was deleted, so nothing is written"
    away.rmdir()
    await store.delete(f"{TRASH_PREFIX}broken")
    assert await on_record(store) == ["a", "c"]
    (tmp_path / "unmounted").rename(away)
    assert (await empty_trash(store)).left == []
    assert list(away.iterdir()) == []
    assert await store.list(TRASH_PREFIX) == []


async def test_files_that_can_never_be_deleted_do_not_keep_the_others(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them, where a store has two failures in each pass."""
    monkeypatch.setattr(trash, "STORE_FAILURES_MAX", 2)
    files = [file_in(tmp_path, f"file{number}") for number in range(6)]
    for stuck in ("file0", "file1"):
        (tmp_path / stuck).unlink()
        (tmp_path / stuck).mkdir()
        (tmp_path / stuck / "inside").touch()
    await store.transact([put_in_trash(NAME, files, 1)])
    while len(await on_record(store)) > 2:
        await empty_trash(store)
    assert await on_record(store) == ["file0", "file1"]


async def test_a_broker_goes_on_trying(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "EMPTY_RETRY_S", 0.01)
    monkeypatch.setattr(cold, "EMPTY_PASSES_MAX", 1_000_000)
    monkeypatch.setattr(cold, "EMPTY_RETRY_S_MAX", 0.02)
    passes = 0

    async def counted(store: MemoryStore) -> trash.Emptied:
        nonlocal passes
        passes += 1
        return await empty_trash(store)

    monkeypatch.setattr(trash, "empty_trash", counted)
    folder = tmp_path / "store"
    await store.transact([put_in_trash(NAME, [file_in(folder, "a")], 1)])
    folder.rename(tmp_path / "away")
    ledgers = ColdLedgers(store)
    ledgers.empty_trash_soon()
    while passes < 3:
        await turns(20)
    assert await on_record(store) == ["a"]
    (tmp_path / "away").rename(folder)
    while await store.list(TRASH_PREFIX):
        await turns(20)
    assert list(folder.iterdir()) == []
    await ledgers.close()


async def test_what_is_not_on_another_volume_is_not_gone(
    store: MemoryStore, tmp_path: Path
) -> None:
    """Where the store was, something else is mounted, or nothing, with a file in it."""
    root = tmp_path / "store"
    folder = root / "public/default/persistent/t"
    folder.mkdir(parents=True)
    for name in "ab":
        (folder / name).touch()
    spec = StoreSpec(FILESYSTEM, str(root))
    files = [TrashedFile(spec, str((folder / name).relative_to(root))) for name in "ab"]
    await store.transact([put_in_trash(NAME, files, 1)])
    root.rename(tmp_path / "unmounted")
    (root / "lost+found").mkdir(parents=True)
    done = await empty_trash(store)
    assert (done.files, len(done.left)) == (0, 1)
    assert "is its volume mounted" in done.left[0][1]
    assert len(await on_record(store)) == 2
    (root / "lost+found").rmdir()
    root.rmdir()
    (tmp_path / "unmounted").rename(root)
    (folder / "a").unlink()  # deleted; its folder shows that
    assert (await empty_trash(store)).left == []
    assert await store.list(TRASH_PREFIX) == []


async def test_a_record_waits_for_none_but_its_own_stores(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = tmp_path / "slow", tmp_path / "quick"
    await store.transact([put_in_trash(NAME, [file_in(slow, "a"), file_in(quick, "b")], 1)])
    await store.transact([put_in_trash(NAME, [file_in(quick, "c")], 1)])
    emptied, answers = trash._empty_store, asyncio.Event()

    async def held(spec: StoreSpec, *rest: Any) -> None:
        if spec.bucket == str(slow):
            await answers.wait()
        await emptied(spec, *rest)

    monkeypatch.setattr(trash, "_empty_store", held)
    emptying = asyncio.ensure_future(empty_trash(store))
    while len(await store.list(TRASH_PREFIX)) == 2:
        await turns(20)
    assert await on_record(store) == ["a", "b"]
    answers.set()
    assert (await emptying).files == 3
    assert await store.list(TRASH_PREFIX) == []
