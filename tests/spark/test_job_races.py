"""Changes at the moment when a job writes its result decide whether the result counts."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.held_store import HeldStore, puts

from magnetar.bookie.api import BookieIdentity
from magnetar.compaction import records as compaction
from magnetar.core.clock import SystemClock
from magnetar.core.errors import PersistenceError, TopicNotFound
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.names import parse_topic
from magnetar.jobs.compaction import swap
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.offload import requests
from magnetar.jobs.offload.plan import Override, TopicWork, topic_works
from magnetar.ledger.metadata import Ensemble, LedgerMetadata, ledger_key
from magnetar.managed_ledger.record import LedgerItem, ManagedLedgerRecord, managed_ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.records import encode as encode_log
from magnetar.offload import records as offload
from magnetar.offload.policy import OffloadPlan
from magnetar.offload.repository import (
    Attempt,
    CommitResult,
    OffloadRepository,
    OpenRequest,
)
from magnetar.offload.stores import StoreSpec

TOPIC = parse_topic("persistent://public/default/t")
NAME = log_name(TOPIC)
LEDGER = 7
SPEC = StoreSpec("filesystem", "/cold")
CLOCK = SystemClock()
JOB = "job"


@pytest.fixture
def store() -> HeldStore:
    return HeldStore()


async def meanwhile(
    store: HeldStore, prefix: str, doing: Awaitable[Any], change: Callable[[], Awaitable[object]]
) -> Any:
    """Runs `change` after all reads that the write relies on."""
    held = store.hold(puts(prefix))
    task = asyncio.ensure_future(doing)
    await held.reached.wait()
    await change()
    held.go.set()
    return await task


def closed(length: int = 30) -> LedgerMetadata:
    return LedgerMetadata(LEDGER, (Ensemble(0, (BookieIdentity("b", "1"),)),), 1).closed(
        2, length, 9
    )


async def begun(store: HeldStore, job: str = JOB) -> Attempt:
    await store.put(ledger_key(LEDGER), encode(closed()))
    return await OffloadRepository(store).begin_attempt(NAME, LEDGER, SPEC, job, 5)


def file_of(attempt: Attempt) -> offload.OffloadRecord:
    return offload.OffloadRecord(LEDGER, attempt.attempt, SPEC, attempt.path, 1, 3, 30, 0, 1, 9, 10)


def committing(store: HeldStore, attempt: Attempt) -> Awaitable[CommitResult]:
    return OffloadRepository(store).commit(NAME, attempt, file_of(attempt))


OFFLOADS = f"/offloads/{NAME}/"


async def test_a_ledger_that_is_trimmed_at_that_moment_gets_no_file(store: HeldStore) -> None:
    attempt = await begun(store)
    trimmed = lambda: store.delete(ledger_key(LEDGER))  # noqa: E731
    assert (
        await meanwhile(store, OFFLOADS, committing(store, attempt), trimmed) is CommitResult.GONE
    )
    assert await OffloadRepository(store).file(NAME, LEDGER) is None


async def test_a_file_that_another_job_commits_first_stays(store: HeldStore) -> None:
    attempt, other = await begun(store), await begun(store, "other")
    result = await meanwhile(
        store, OFFLOADS, committing(store, attempt), lambda: committing(store, other)
    )
    assert result is CommitResult.ALREADY
    assert await OffloadRepository(store).file(NAME, LEDGER) == file_of(other)


async def test_an_attempt_that_is_claimed_at_that_moment_does_not_count(store: HeldStore) -> None:
    attempt = await begun(store)
    record = offload.AttemptRecord(SPEC, attempt.path, 5, JOB)
    claimed = lambda: OffloadRepository(store).claim_attempt(attempt, record, "cleaner")  # noqa: E731
    with pytest.raises(PersistenceError, match="cleaned up"):
        await meanwhile(store, OFFLOADS, committing(store, attempt), claimed)
    assert await OffloadRepository(store).file(NAME, LEDGER) is None


@pytest.mark.parametrize("of", ["another length", "an open ledger"])
async def test_a_file_that_is_not_of_the_whole_ledger_does_not_count(
    store: HeldStore, of: str
) -> None:
    attempt = await begun(store)
    other = closed(31)
    if of == "an open ledger":
        other = LedgerMetadata(LEDGER, (Ensemble(0, (BookieIdentity("b", "1"),)),), 1)
    await store.put(ledger_key(LEDGER), encode(other))
    with pytest.raises(PersistenceError, match="not closed" if "open" in of else "31 bytes"):
        await committing(store, attempt)
    assert await OffloadRepository(store).file(NAME, LEDGER) is None


def work(asked: OpenRequest | None, **fields: Any) -> TopicWork:
    plan = OffloadPlan(fields.pop("target", SPEC), -1, -1, -1, "tiered-storage-first")
    items = tuple(LedgerItem(each, 1, 9, 3, 30) for each in (3, 5, 7))
    return TopicWork(TOPIC, NAME, plan, items, {}, asked, ())


async def asked_for(store: HeldStore, **fields: Any) -> OpenRequest:
    request = offload.OffloadRequest(**{"up_to": Position(7, 0), "requested_ms": 1, **fields})
    return OpenRequest(request, await store.put(offload.request_key(NAME), encode(request)))


async def stored_request(store: HeldStore) -> offload.OffloadRequest:
    stored = await store.get(offload.request_key(NAME))
    assert stored is not None
    return offload.decode_request(stored.key, stored.value)


async def offloaded(store: HeldStore, *ledger_ids: int) -> None:
    for each in ledger_ids:
        file = offload.OffloadRecord(each, "a", SPEC, "p", 1, 3, 30, 0, 1, 9, 10)
        await store.put(offload.offload_key(NAME, each), encode(file))


@pytest.mark.parametrize(
    ("moved", "target", "errors", "state"),
    [
        ((3, 5), SPEC, ["no room"], "SUCCESS"),
        ((3,), SPEC, [], "SUCCESS"),
        ((3,), SPEC, ["no room"], "ERROR"),
        ((3,), None, [], "ERROR"),
        ((), SPEC, ["no room"], "ERROR"),
    ],
)
async def test_a_request_ends_as_its_ledgers_are(
    store: HeldStore, moved: tuple[int, ...], target: StoreSpec, errors: list[str], state: str
) -> None:
    asked = work(await asked_for(store), target=target)
    await offloaded(store, *moved)
    ended = await requests.finish(store, asked, 9, errors)
    assert ended is not None
    assert ended == await stored_request(store)
    assert (ended.state, ended.finished_ms) == (state, 9)
    first = next((each for each in (3, 5, 7) if each not in moved), 7)
    assert ended.first_unoffloaded == Position(first, 0)
    if state == "ERROR":
        assert ended.error == (errors[0] if errors else ended.error) != ""


@pytest.mark.parametrize("late", [False, True], ids=["before the read", "before the write"])
async def test_a_request_that_came_since_is_not_ended_by_an_older_job(
    store: HeldStore, late: bool
) -> None:
    asked = work(await asked_for(store))
    newer = offload.OffloadRequest(LATEST, 2)
    again = lambda: store.put(offload.request_key(NAME), encode(newer))  # noqa: E731
    if late:
        ending = requests.finish(store, asked, 9, [])
        await meanwhile(store, offload.request_key(NAME), ending, again)
    else:
        await again()
        assert await requests.finish(store, asked, 9, []) is None
    assert await stored_request(store) == newer


async def test_a_request_that_another_job_took_up_first_is_theirs(store: HeldStore) -> None:
    asked = work(await asked_for(store))
    theirs = msgspec.structs.replace(
        await stored_request(store), state=offload.RequestState.RUNNING, job="other"
    )
    await store.put(offload.request_key(NAME), encode(theirs))
    await requests.mark_running(store, asked, JOB)
    assert await stored_request(store) == theirs


@pytest.mark.parametrize("state", list(offload.RequestState))
async def test_a_finished_request_asks_for_nothing(
    store: HeldStore, state: offload.RequestState
) -> None:
    items = (LedgerItem(3, 1, 9, 3, 30), LedgerItem(9, 1, 0, 4, 40))
    key = managed_ledger_key(NAME)
    await store.put(key, encode_log(ManagedLedgerRecord(1, 1, items)))
    await asked_for(store, state=state)
    (found,) = await topic_works(store, [TOPIC], Override(store=SPEC), 10)
    finished = state in (offload.RequestState.SUCCESS, offload.RequestState.ERROR)
    assert (found.request is None) is finished
    assert [each.ledger_id for each in found.tasks] == ([] if finished else [3])
    # The newest ledger is open: it is neither moved nor counted.
    for threshold, due in ((0, [3]), (29, [3]), (30, [])):
        override = Override(store=SPEC, threshold_bytes=threshold)
        await store.delete(offload.request_key(NAME))
        (found,) = await topic_works(store, [TOPIC], override, 10)
        assert [each.ledger_id for each in found.tasks] == due
    await store.put(key, encode_log(ManagedLedgerRecord(1, 1, items, deleted=True)))
    assert await topic_works(store, [TOPIC], Override(store=SPEC, threshold_bytes=0), 10) == []


HORIZON = Position(7, 9)
COMPACTION = compaction.compaction_key(NAME)


async def log_is(store: HeldStore, created_ms: int = 1, **fields: Any) -> None:
    record = ManagedLedgerRecord(created_ms, 1, **fields)
    await store.put(managed_ledger_key(NAME), encode_log(record))


async def compacting(store: HeldStore, folder: Path) -> swap.Attempt:
    await log_is(store)
    spec, planned = StoreSpec("filesystem", str(folder)), await swap.live(store, NAME)
    return await swap.begin(store, NAME, "a" * 32, spec, JOB, CLOCK, planned=planned)


def committing_artifact(
    store: HeldStore, attempt: swap.Attempt
) -> Awaitable[compaction.CompactionRecord]:
    return swap.commit(store, attempt, HORIZON, (), removed=0, clock=CLOCK)


async def live_attempt(store: HeldStore) -> str:
    stored = await store.get(COMPACTION)
    return "" if stored is None else compaction.decode_compaction(COMPACTION, stored.value).attempt


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"last_position": Position(7, 10)}, swap.Superseded),
        ({"last_position": Position(8, 0)}, swap.Superseded),
        ({"deleted": True}, TopicNotFound),
        ({"created_ms": 2}, TopicNotFound),
    ],
)
async def test_a_log_that_is_not_what_was_read_gets_no_artifact(
    store: HeldStore, tmp_path: Path, change: dict[str, Any], error: type[Exception]
) -> None:
    attempt = await compacting(store, tmp_path)
    with pytest.raises(error):
        await meanwhile(
            store,
            COMPACTION,
            committing_artifact(store, attempt),
            lambda: log_is(store, **change),
        )
    assert await live_attempt(store) == ""


async def test_a_log_that_only_grew_or_was_trimmed_to_the_horizon_gets_its_artifact(
    store: HeldStore, tmp_path: Path
) -> None:
    attempt = await compacting(store, tmp_path)
    await meanwhile(
        store,
        COMPACTION,
        committing_artifact(store, attempt),
        lambda: log_is(store, last_position=HORIZON),
    )
    assert await live_attempt(store) == attempt.number
    assert await store.list(compaction.ATTEMPTS_PREFIX) == []


async def test_an_artifact_that_another_job_commits_first_stays(
    store: HeldStore, tmp_path: Path
) -> None:
    attempt = await compacting(store, tmp_path)
    theirs = compaction.CompactionRecord(Position(9, 0), 1, "b" * 32, SPEC, 5)
    with pytest.raises(swap.Superseded):
        await meanwhile(
            store,
            COMPACTION,
            committing_artifact(store, attempt),
            lambda: store.put(COMPACTION, encode(theirs)),
        )
    assert await live_attempt(store) == theirs.attempt


async def test_an_artifact_whose_attempt_is_cleaned_up_at_that_moment_does_not_count(
    store: HeldStore, tmp_path: Path
) -> None:
    attempt = await compacting(store, tmp_path)
    key = compaction.attempt_key(NAME, attempt.number)
    nobodys = msgspec.structs.replace(attempt.record, job="")
    with pytest.raises(swap.Superseded):
        await meanwhile(
            store,
            COMPACTION,
            committing_artifact(store, attempt),
            lambda: store.put(key, encode(nobodys)),
        )
    assert await live_attempt(store) == ""


async def test_replaced_files_stay_named_until_their_grace_is_over(
    store: HeldStore, tmp_path: Path
) -> None:
    spec = StoreSpec("filesystem", str(tmp_path))
    now_ms = CLOCK.now_ms()
    ages = (compaction.RETIRED_GRACE_MS, compaction.RETIRED_GRACE_MS - 1)
    retired = tuple(
        compaction.RetiredFile(spec, f"retired-{age_ms}", now_ms - age_ms) for age_ms in ages
    )
    file = compaction.CompactedFile("live", 1, 0, EARLIEST, HORIZON, 1, 1, 1)
    before = compaction.CompactionRecord(EARLIEST, 1, "b" * 32, spec, 5, (file,), retired)
    await store.put(COMPACTION, encode(before))
    attempt = await compacting(store, tmp_path)
    record = await committing_artifact(store, attempt)
    assert [each.path for each in record.retired] == [*(each.path for each in retired), "live"]
    removed = await swap.clean_retired(store, NAME, now_ms)
    assert (removed.files, removed.kept) == (1, [])
    stored = await store.get(COMPACTION)
    assert stored is not None
    left = compaction.decode_compaction(COMPACTION, stored.value).retired
    assert [each.path for each in left] == [retired[1].path, "live"]
