"""Filling and emptying the trash: transactions, frequency, back-off."""

import asyncio
import random
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore as Objects
from tests.unit.ledger.stage import ManualClock, turns

from magnetar.core.clock import SystemClock
from magnetar.core.errors import MetadataError
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import MetadataUnavailable, Record
from magnetar.offload import cold, store_clock, trash
from magnetar.offload.cold import TRASH_ATTEMPTS_MAX, ColdLedgers
from magnetar.offload.errors import ColdStoreUnavailable
from magnetar.offload.records import OffloadRecord, offload_key, offloads_prefix
from magnetar.offload.store_clock import store_now_ms
from magnetar.offload.stores import FILESYSTEM, StoreSpec
from magnetar.offload.trash import (
    TRASH_PREFIX,
    Emptied,
    TrashedFile,
    decode_trash,
    empty_trash,
    put_in_trash,
)


class Emptying:
    """Passes over the trash as the test has them go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, passes_max: int = 3) -> None:
        self.passes = 0
        self.outcomes: list[Emptied | Exception] = []
        self.pauses: list[float] = []
        self.stuck = Emptied(left=[("a store", "away")])
        monkeypatch.setattr(cold, "EMPTY_PASSES_MAX", passes_max)
        monkeypatch.setattr(trash, "empty_trash", self._pass)
        monkeypatch.setattr(asyncio, "timeout", self._timeout)
        monkeypatch.setattr(random, "uniform", lambda _low, high: high)
        self.pausing = True
        self.ledgers = ColdLedgers(MemoryStore(SystemClock()))

    async def _pass(self, _: object) -> Emptied:
        self.passes += 1
        outcome = self.outcomes.pop(0) if self.outcomes else self.stuck
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _timeout(self, delay_s: float) -> Any:
        self.pauses.append(delay_s)
        return TIMEOUT(0 if self.pausing else None)

    async def ended(self) -> None:
        assert self.ledgers._emptying is not None
        await self.ledgers._emptying


TIMEOUT = asyncio.timeout


async def test_the_trash_is_emptied_so_many_times_with_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold, "EMPTY_RETRY_S", 10.0)
    monkeypatch.setattr(cold, "EMPTY_RETRY_S_MAX", 35.0)
    emptying = Emptying(monkeypatch, 4)
    emptying.ledgers.empty_trash_soon()
    await emptying.ended()
    assert emptying.passes == 4
    assert emptying.pauses == [10.0, 20.0, 35.0, 35.0]
    await emptying.ledgers.close()


async def test_an_empty_trash_is_requested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    emptying = Emptying(monkeypatch)
    emptying.outcomes = [Emptied(files=1)]
    emptying.ledgers.empty_trash_soon()
    await emptying.ended()
    assert (emptying.passes, emptying.pauses) == (1, [])
    emptying.outcomes = [Emptied()]
    emptying.ledgers.empty_trash_soon()
    await emptying.ended()
    assert emptying.passes == 2
    await emptying.ledgers.close()


async def test_metadata_that_is_away_ends_no_emptying(monkeypatch: pytest.MonkeyPatch) -> None:
    emptying = Emptying(monkeypatch)
    emptying.outcomes = [MetadataUnavailable("away"), Emptied()]
    emptying.ledgers.empty_trash_soon()
    await emptying.ended()
    assert (emptying.passes, len(emptying.pauses)) == (2, 1)
    await emptying.ledgers.close()


async def test_more_trash_is_emptied_at_once_with_all_passes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emptying = Emptying(monkeypatch, 2)
    emptying.pausing = False
    emptying.ledgers.empty_trash_soon()
    task = emptying.ledgers._emptying
    await turns(5)
    assert emptying.passes == 1, "it waits"
    for passes in (2, 3, 4):
        emptying.ledgers.empty_trash_soon()
        await turns(5)
        assert emptying.ledgers._emptying is task, "one at a time"
        assert emptying.passes == passes
    emptying.outcomes = [Emptied()]
    emptying.ledgers.empty_trash_soon()
    await emptying.ended()
    await emptying.ledgers.close()


async def test_what_is_put_in_the_trash_during_a_pass_is_not_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emptying = Emptying(monkeypatch)

    async def during(_: object) -> Emptied:
        emptying.passes += 1
        if emptying.passes == 1:
            emptying.ledgers.empty_trash_soon()
        return Emptied()

    monkeypatch.setattr(trash, "empty_trash", during)
    emptying.ledgers.empty_trash_soon()
    await emptying.ended()
    assert emptying.passes == 2
    await emptying.ledgers.close()


async def test_after_its_close_nothing_of_a_ledgers_reader_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emptying = Emptying(monkeypatch)
    emptying.pausing = False
    emptying.ledgers.empty_trash_soon()
    await turns(5)
    task = emptying.ledgers._emptying
    assert task is not None
    await emptying.ledgers.close()
    assert task.done()
    with pytest.raises(ColdStoreUnavailable, match="stopping"):
        await emptying.ledgers.files._once("key", asyncio.Event().wait)


@pytest.mark.parametrize("by_hand", [True, False])
async def test_trash_says_when_it_was_put_there(by_hand: bool) -> None:
    clock = ManualClock() if by_hand else SystemClock()
    store = MemoryStore(SystemClock())
    ledgers = ColdLedgers(store, clock=ManualClock()) if by_hand else ColdLedgers(store)
    spec = StoreSpec(FILESYSTEM, "/absent")
    before_ms = clock.now_ms()
    for ledger_id in (1, 2, 3):
        record = OffloadRecord(ledger_id, "a", spec, f"p{ledger_id}", 1, 1, 1, 1, 1, 1, 1)
        await store.put(offload_key("n", ledger_id), encode(record))
    await ledgers.delete("n", [1, 3, 9])
    (stored,) = await store.list(TRASH_PREFIX)
    found = decode_trash(stored.key, stored.value)
    assert [file.path for file in found.files] == ["p1", "p3"]
    assert before_ms <= found.trashed_ms <= clock.now_ms()
    assert list(await ledgers.records("n")) == [2]
    await ledgers.close()


async def test_a_record_that_cannot_be_read_keeps_no_other_file_from_the_trash() -> None:
    """Its own file is unknown: the result reports that it is left."""
    store = MemoryStore(SystemClock())
    ledgers = ColdLedgers(store)
    spec = StoreSpec(FILESYSTEM, "/absent")
    for ledger_id in (1, 3):
        record = OffloadRecord(ledger_id, "a", spec, f"p{ledger_id}", 1, 1, 1, 1, 1, 1, 1)
        await store.put(offload_key("n", ledger_id), encode(record))
    await store.put(offload_key("n", 2), b"unreadable")
    for _ in range(2):
        with pytest.raises(MetadataError, match=offload_key("n", 2)):
            await ledgers.delete("n", [1, 2, 3])
        left = [each.key for each in await store.list(offloads_prefix("n"))]
        assert left == [offload_key("n", 2)]
    await ledgers.delete("n", [1, 3])
    await ledgers.close()


@pytest.mark.parametrize("rivals", [TRASH_ATTEMPTS_MAX - 1, TRASH_ATTEMPTS_MAX])
async def test_a_job_that_writes_a_record_meanwhile_loses_no_file(rivals: int) -> None:
    """The trash names the file of the record that it takes away, and no former one's."""

    class Job(MemoryStore):
        left = rivals

        async def list(self, prefix: str) -> list[Record]:
            found = await super().list(prefix)
            if prefix == offloads_prefix("n") and self.left:
                self.left -= 1
                path = f"path {self.left}"
                record = OffloadRecord(1, "a", spec, path, 1, 1, 1, 1, 1, 1, 1)
                await self.put(offload_key("n", 1), encode(record))
            return found

    spec = StoreSpec(FILESYSTEM, "/absent")
    store = Job(SystemClock())
    await store.put(
        offload_key("n", 1),
        encode(OffloadRecord(1, "a", spec, "first", 1, 1, 1, 1, 1, 1, 1)),
    )
    ledgers = ColdLedgers(store)
    if rivals == TRASH_ATTEMPTS_MAX:
        with pytest.raises(MetadataError, match=f"changed {TRASH_ATTEMPTS_MAX} times"):
            await ledgers.delete("n", [1])
        assert await store.list(TRASH_PREFIX) == []
    else:
        await ledgers.delete("n", [1])
        (stored,) = await store.list(TRASH_PREFIX)
        found = decode_trash(stored.key, stored.value)
        assert [file.path for file in found.files] == ["path 0"]
        assert await store.list(offloads_prefix("n")) == []
    await ledgers.close()


@pytest.mark.parametrize("count", [1, 2, 3, 5])
async def test_many_files_go_to_the_trash_so_many_at_once(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(cold, "TRASHED_AT_ONCE_MAX", 2)
    store = MemoryStore(SystemClock())
    spec = StoreSpec(FILESYSTEM, "/absent")
    for ledger_id in range(count):
        record = OffloadRecord(ledger_id, "a", spec, f"p{ledger_id}", 1, 1, 1, 1, 1, 1, 1)
        await store.put(offload_key("n", ledger_id), encode(record))
    ledgers = ColdLedgers(store)
    await ledgers.delete("n", range(count))
    lists = [decode_trash(each.key, each.value) for each in await store.list(TRASH_PREFIX)]
    assert sorted(len(each.files) for each in lists) == [1] * (count % 2) + [2] * (count // 2)
    assert sorted(file.path for each in lists for file in each.files) == [
        f"p{ledger_id}" for ledger_id in range(count)
    ]
    assert await store.list(offloads_prefix("n")) == []
    await ledgers.close()


async def never(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


async def test_a_store_that_does_not_answer_a_deletion_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trash, "DELETE_TIMEOUT_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "delete_async", never)
        with pytest.raises(ColdStoreUnavailable, match="a/b cannot be read now"):
            await trash.delete_file(Objects(), "a/b")
    with monkeypatch.context() as patch:
        patch.setattr(trash, "delete_file", absent)
        patch.setattr(trash, "in_thread_of", never)
        spec = StoreSpec(FILESYSTEM, str(tmp_path))
        with pytest.raises(TimeoutError):
            await trash._delete(spec, Objects(), "a/b")


async def absent(*_: object) -> bool:
    return False


async def test_a_store_whose_folder_does_not_answer_keeps_its_files_on_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = MemoryStore(SystemClock())
    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    (tmp_path / "keep").touch()
    await store.transact([put_in_trash("x", [TrashedFile(spec, "a/b")], 1)])

    async def hanging(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(trash, "_delete", hanging)
    done = await empty_trash(store)
    assert (done.files, len(done.left)) == (0, 1)
    assert len(await store.list(TRASH_PREFIX)) == 1


async def test_a_store_that_does_not_tell_its_time_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(store_clock, "PROBE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(obstore, "put_async", never)
    with pytest.raises(ColdStoreUnavailable, match="the time of filesystem"):
        await store_now_ms(StoreSpec(FILESYSTEM, str(tmp_path)))


async def test_the_reason_why_a_store_was_not_emptied_is_reported(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    spec = StoreSpec(FILESYSTEM, str(tmp_path / "absent"))
    await store.transact([put_in_trash("x", [TrashedFile(spec, "a"), TrashedFile(spec, "b")], 1)])
    ((what, why),) = (await empty_trash(store)).left
    assert what.startswith(f"{spec}, 2 files such as ")
    assert why == f"{tmp_path / 'absent'} is missing or empty: is its volume mounted?"
    assert len(await store.list(TRASH_PREFIX)) == 1


@pytest.mark.parametrize("left", [0, 1])
async def test_a_list_of_trash_that_is_written_again_meanwhile_is_left_to_the_other(
    tmp_path: Path, left: int
) -> None:
    """Another broker empties the trash at the same time: its list is the newer one."""

    class Rival(MemoryStore):
        async def list(self, prefix: str) -> list[Record]:
            found = await super().list(prefix)
            for each in found:
                await super().put(each.key, put_in_trash("x", newer, 2).value)
            return found

    store = Rival(SystemClock())
    spec, away = (StoreSpec(FILESYSTEM, str(path)) for path in (tmp_path, tmp_path / "away"))
    for name in ("a", "keep"):
        (tmp_path / name).touch()
    newer = [TrashedFile(away, "newer")]
    files = [TrashedFile(spec, "a"), *[TrashedFile(away, "b")] * left]
    await store.transact([put_in_trash("x", files, 1)])
    done = await empty_trash(store)
    assert (done.files, len(done.left)) == (1, left)
    (stored,) = await MemoryStore.list(store, TRASH_PREFIX)
    assert decode_trash(stored.key, stored.value).files == tuple(newer)
