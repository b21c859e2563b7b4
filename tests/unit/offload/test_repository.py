"""The records of offloaded ledgers: which file becomes live, and which attempt may delete its own.

In memory, without Spark: the same rules as in `tests/spark/test_offload_commit.py`, where a job
applies them.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tests.support.held_store import HeldStore, puts
from tests.unit.ledger.stage import turns

from magnetar.bookie.api import BookieIdentity
from magnetar.core.errors import MetadataError, PersistenceError
from magnetar.core.ids import Position
from magnetar.ledger.metadata import Ensemble, LedgerMetadata, LedgerState, ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, BadRevision, Check, MetadataUnavailable
from magnetar.offload import repository as repository_module
from magnetar.offload.policy import NO_DEFAULTS, namespace_key, topic_policies_key
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    DEFAULTS_KEY,
    JOBS_PREFIX,
    OFFLOADS_PREFIX,
    OffloadRecord,
    OffloadRequest,
    RequestState,
    attempt_key,
    decode_attempt,
    decode_request,
    offload_key,
    request_key,
)
from magnetar.offload.repository import Attempt, CommitResult, OffloadRepository
from magnetar.offload.stores import FILESYSTEM, StoreSpec, open_object_store

NAME = "public/default/persistent/t"
OTHER = "public/default/persistent/t2"
LEDGER = 7
DEADLINE_S = 20.0
LIVE = puts(OFFLOADS_PREFIX)


def ledger(ledger_id: int = LEDGER) -> LedgerMetadata:
    ensembles = (Ensemble(0, (BookieIdentity("b", "1"),)),)
    return LedgerMetadata(ledger_id, ensembles, 1)


@dataclass
class Stage:
    """A store with a closed ledger of three entries, and the folder of its files."""

    store: HeldStore
    repository: OffloadRepository
    folder: Path

    @property
    def spec(self) -> StoreSpec:
        return StoreSpec(FILESYSTEM, str(self.folder))

    async def begin(self, job: str = "job", ledger_id: int = LEDGER, name: str = NAME) -> Attempt:
        return await self.repository.begin_attempt(name, ledger_id, self.spec, job, 5)

    def file_of(self, attempt: Attempt) -> OffloadRecord:
        return OffloadRecord(
            ledger_id=LEDGER,
            attempt=attempt.attempt,
            store=self.spec,
            path=attempt.path,
            file_bytes=1,
            entries=3,
            length_bytes=30,
            checksum=0,
            created_ms=1,
            closed_ms=9,
            offloaded_ms=10,
        )

    async def commit(self, attempt: Attempt, **other: int) -> CommitResult:
        file = msgspec.structs.replace(self.file_of(attempt), **other)
        async with asyncio.timeout(DEADLINE_S):
            return await self.repository.commit(NAME, attempt, file)

    async def live(self) -> str | None:
        """Returns the attempt whose file is live."""
        file = await self.repository.file(NAME, LEDGER)
        return None if file is None else file.attempt

    async def recorded(self) -> set[str]:
        return {each.key for each in await self.repository.attempts()}


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(repository_module, "COMMIT_PAUSE_S_MAX", 0.001)
    store = HeldStore()
    await store.put(ledger_key(LEDGER), encode(ledger().closed(2, 30, 9)))
    return Stage(store, OffloadRepository(store), tmp_path)


# -- commits


async def test_a_commit_makes_the_file_live_and_ends_its_attempt(stage: Stage) -> None:
    attempt = await stage.begin()
    assert await stage.recorded() == {attempt_key(NAME, LEDGER, attempt.attempt)}
    record = decode_attempt(attempt.key, (await stage.repository.attempts())[0].value)
    assert (record.job, record.started_ms, record.path) == ("job", 5, attempt.path)
    assert record.store == stage.spec
    assert await stage.live() is None
    assert await stage.commit(attempt) is CommitResult.OFFLOADED
    assert await stage.live() == attempt.attempt
    assert await stage.recorded() == set()
    assert await stage.commit(attempt) is CommitResult.OFFLOADED, "repeated, it is the same file"


async def test_of_two_attempts_one_file_becomes_live(stage: Stage) -> None:
    first, second = await stage.begin("a"), await stage.begin("b")
    assert first.attempt != second.attempt
    assert first.path != second.path
    assert await stage.commit(second) is CommitResult.OFFLOADED
    assert await stage.commit(first) is CommitResult.ALREADY
    assert await stage.live() == second.attempt
    assert await stage.recorded() == {first.key}, "its file must still be deleted"


async def test_of_two_commits_at_once_the_later_one_sees_the_other(stage: Stage) -> None:
    first, second = await stage.begin("a"), await stage.begin("b")
    held = stage.store.hold(LIVE)
    committing = asyncio.ensure_future(stage.commit(first))
    await held.reached.wait()
    assert await stage.commit(second) is CommitResult.OFFLOADED
    held.go.set()
    assert await committing is CommitResult.ALREADY
    assert await stage.live() == second.attempt


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_the_file_of_a_deleted_ledger_does_not_become_live(stage: Stage, when: str) -> None:
    attempt = await stage.begin()
    if when == "before":
        await stage.store.delete(ledger_key(LEDGER))
        assert await stage.commit(attempt) is CommitResult.GONE
    else:
        held = stage.store.hold(LIVE)
        committing = asyncio.ensure_future(stage.commit(attempt))
        await held.reached.wait()
        await stage.store.delete(ledger_key(LEDGER))
        held.go.set()
        assert await committing is CommitResult.GONE
    assert await stage.live() is None
    assert await stage.recorded() == {attempt.key}


async def test_a_ledger_that_changed_is_read_again(stage: Stage) -> None:
    """Autorecovery moves copies of closed ledgers at any time."""
    attempt = await stage.begin()
    held = stage.store.hold(LIVE)
    committing = asyncio.ensure_future(stage.commit(attempt))
    await held.reached.wait()
    moved = (Ensemble(0, (BookieIdentity("c", "1"),)),)
    record = ledger().closed(2, 30, 9).with_ensembles(moved)
    await stage.store.put(ledger_key(LEDGER), encode(record))
    held.go.set()
    assert await committing is CommitResult.OFFLOADED
    assert await stage.live() == attempt.attempt


@pytest.mark.parametrize(
    "wrong", [{"entries": 2}, {"entries": 4}, {"length_bytes": 29}, {"length_bytes": 31}]
)
async def test_a_file_that_is_not_the_whole_ledger_does_not_become_live(
    stage: Stage, wrong: dict[str, int]
) -> None:
    attempt = await stage.begin()
    with pytest.raises(PersistenceError, match="ledger 7 has 3 entries of 30 bytes, its file"):
        await stage.commit(attempt, **wrong)
    assert await stage.live() is None


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
async def test_a_ledger_that_may_still_grow_is_not_offloaded(
    stage: Stage, state: LedgerState
) -> None:
    record = msgspec.structs.replace(ledger(), state=state, last_entry=2, length_bytes=30)
    await stage.store.put(ledger_key(LEDGER), encode(record))
    with pytest.raises(PersistenceError, match="not closed"):
        await stage.repository.closed_ledger(LEDGER)
    attempt = await stage.begin()
    with pytest.raises(PersistenceError, match="not closed"):
        await stage.commit(attempt)
    assert await stage.repository.closed_ledger(LEDGER + 1) is None


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not landed"])
async def test_a_commit_without_an_answer_is_found_out(stage: Stage, landed: bool) -> None:
    attempt = await stage.begin()
    lost = stage.store.lose(LIVE, lands=landed)
    committing = asyncio.ensure_future(stage.commit(attempt))
    await lost.reached.wait()
    await turns(20)
    assert not committing.done()
    stage.store.away = False
    assert await committing is CommitResult.OFFLOADED
    assert await stage.live() == attempt.attempt
    assert await stage.recorded() == set()


async def test_a_commit_that_takes_effect_between_its_two_reads_is_its_own(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = await stage.begin()
    get, reads = stage.store.get, list[str]()

    async def overtaken(key: str) -> object:
        reads.append(key)
        if key == attempt.key:
            monkeypatch.undo()
            file = encode(stage.file_of(attempt))
            await stage.store.put(offload_key(NAME, LEDGER), file)
            await stage.store.delete(attempt.key)
        return await get(key)

    monkeypatch.setattr(stage.store, "get", overtaken)
    assert await stage.commit(attempt) is CommitResult.OFFLOADED
    assert reads[-1] == attempt.key


async def test_a_commit_that_is_never_answered_ends_and_leaves_all_in_place(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "COMMIT_TIMEOUT_S", 0.02)
    attempt = await stage.begin()
    stage.store.lose(LIVE, lands=False)
    with pytest.raises(MetadataUnavailable):
        await stage.commit(attempt)
    stage.store.away = False
    assert await stage.recorded() == {attempt.key}


async def test_a_commit_under_constant_change_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "COMMIT_TIMEOUT_S", 0.02)
    attempt = await stage.begin()

    async def overtaken(_: object) -> int:
        raise BadRevision(ledger_key(LEDGER), 1, 2)

    monkeypatch.setattr(stage.store, "transact", overtaken)
    with pytest.raises(MetadataUnavailable, match="could not be committed in time"):
        await stage.commit(attempt)


# -- attempts


async def test_a_claimed_attempt_is_not_committed_by_its_former_job(stage: Stage) -> None:
    attempt = await stage.begin("dead")
    (stored,) = await stage.repository.attempts()
    record = decode_attempt(stored.key, stored.value)
    claimed = await stage.repository.claim_attempt(attempt, record, "cleaner")
    assert (claimed.key, claimed.attempt, claimed.path) == (
        attempt.key,
        attempt.attempt,
        attempt.path,
    )
    (stored,) = await stage.repository.attempts()
    assert decode_attempt(stored.key, stored.value).job == "cleaner"
    assert stored.revision == claimed.revision
    with pytest.raises(PersistenceError, match="was cleaned up: the job seemed dead"):
        await stage.commit(attempt)
    assert await stage.live() is None
    with pytest.raises(BadRevision):
        await stage.repository.claim_attempt(attempt, record, "another")


async def test_a_claim_during_a_commit_makes_it_fail(stage: Stage) -> None:
    attempt = await stage.begin("slow")
    (stored,) = await stage.repository.attempts()
    held = stage.store.hold(LIVE)
    committing = asyncio.ensure_future(stage.commit(attempt))
    await held.reached.wait()
    record = decode_attempt(stored.key, stored.value)
    await stage.repository.claim_attempt(attempt, record, "cleaner")
    held.go.set()
    with pytest.raises(PersistenceError, match="cleaned up"):
        await committing
    assert await stage.live() is None


async def test_an_own_attempt_is_reclaimed_unless_it_has_ended_or_belongs_to_another(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = await stage.begin()
    again = await stage.repository.reclaim_attempt(attempt, "job")
    assert again is not None
    assert again.revision > attempt.revision
    with pytest.raises(PersistenceError, match="cleaned up"):
        await stage.commit(attempt)
    assert await stage.repository.reclaim_attempt(attempt, "job") is None, "that one is past"

    async def overtaken(*_: object) -> Attempt:
        raise BadRevision(attempt.key, 1, 2)

    with monkeypatch.context() as patch:
        patch.setattr(OffloadRepository, "claim_attempt", overtaken)
        assert await stage.repository.reclaim_attempt(again, "job") is None
    assert await stage.commit(again) is CommitResult.OFFLOADED
    assert await stage.repository.reclaim_attempt(again, "job") is None


async def test_a_discarded_attempt_leaves_neither_file_nor_record(stage: Stage) -> None:
    files = open_object_store(stage.spec)
    attempt, other = await stage.begin(), await stage.begin("b")
    for each in (attempt, other):
        path = stage.folder / each.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"unfinished")
    await stage.repository.discard_attempt(files, attempt)
    assert await stage.recorded() == {other.key}
    assert not (stage.folder / attempt.path).exists()
    assert (stage.folder / other.path).exists()
    await stage.repository.discard_attempt(files, attempt)
    (stored,) = await stage.repository.attempts()
    record = decode_attempt(stored.key, stored.value)
    await stage.repository.claim_attempt(other, record, "cleaner")
    with pytest.raises(BadRevision):
        await stage.repository.discard_attempt(files, other)
    assert await stage.recorded() == {other.key}, "it belongs to the cleaner now"


async def test_the_attempts_on_a_ledger_are_those_of_its_name_alone(stage: Stage) -> None:
    mine, second = await stage.begin(), await stage.begin(ledger_id=8)
    theirs = await stage.begin(name=OTHER)
    assert await stage.repository.attempt_paths(NAME) == {mine.path, second.path}
    assert await stage.repository.attempt_paths(OTHER) == {theirs.path}
    await stage.store.put(f"{ATTEMPTS_PREFIX}{OTHER}/broken", b"?")
    assert len(await stage.repository.attempts()) == 4, "a bad record hides no other"
    with pytest.raises(MetadataError):
        await stage.repository.attempt_paths(OTHER)


# -- files, requests, policies


async def test_files_are_listed_by_ledger_and_released_once(stage: Stage) -> None:
    attempt = await stage.begin()
    await stage.commit(attempt)
    older = msgspec.structs.replace(stage.file_of(attempt), ledger_id=3)
    await stage.store.put(offload_key(NAME, 3), encode(older))
    await stage.store.put(offload_key(OTHER, 9), encode(older))
    files = await stage.repository.files(NAME)
    assert list(files) == [3, LEDGER]
    assert await stage.repository.mark_released(NAME, files[LEDGER], 77)
    released = await stage.repository.file(NAME, LEDGER)
    assert released == msgspec.structs.replace(stage.file_of(attempt), released_ms=77)
    assert not await stage.repository.mark_released(NAME, files[LEDGER], 78)
    assert (await stage.repository.files(NAME))[LEDGER].record == released
    untouched = await stage.repository.file(NAME, 3)
    assert untouched is not None
    assert untouched.released_ms == 0
    assert await stage.repository.file(NAME, 4) is None


@pytest.mark.parametrize("state", list(RequestState))
async def test_a_request_is_open_until_a_job_has_finished_it(
    stage: Stage, state: RequestState
) -> None:
    repository = stage.repository
    assert await repository.open_request(NAME) is None
    asked = OffloadRequest(Position(7, 3), 5)
    await stage.store.put(request_key(NAME), encode(asked))
    found = await repository.open_request(NAME)
    assert found is not None
    assert found.request == asked
    changed = msgspec.structs.replace(asked, state=state, job="j")
    assert await repository.replace_request(NAME, changed, found.revision)
    assert not await repository.replace_request(NAME, asked, found.revision), "it has changed"
    stored = await stage.store.get(request_key(NAME))
    assert stored is not None
    assert decode_request(stored.key, stored.value) == changed
    again = await repository.open_request(NAME)
    if state in (RequestState.SUCCESS, RequestState.ERROR):
        assert again is None
    else:
        assert again == (changed, stored.revision)
    with pytest.raises(BadRevision):
        await repository.delete_request(NAME, Check("/mark", 7))
    assert await stage.store.get(request_key(NAME)) is not None
    for _ in range(2):
        await repository.delete_request(NAME, Check("/mark", ABSENT))
        assert await stage.store.get(request_key(NAME)) is None


async def test_running_jobs_are_listed_by_id(stage: Stage) -> None:
    assert await stage.repository.jobs() == set()
    for job in ("a", "b"):
        await stage.store.put(f"{JOBS_PREFIX}{job}", b"")
    assert await stage.repository.jobs() == {"a", "b"}


async def test_the_policies_of_a_topic_are_its_namespaces_and_its_own(stage: Stage) -> None:
    repository, name = stage.repository, f"{NAME}-partition-1"
    assert await repository.defaults() == NO_DEFAULTS
    none = await repository.policies(name)
    assert (none.namespace, none.topic, none.offload) == ({}, {}, None)
    document = {"offload_policies": {"managedLedgerOffloadThresholdInBytes": 5}}
    own = {"local": {"offload": {"managedLedgerOffloadThresholdInBytes": 6}}}
    await stage.store.put(namespace_key(name), encode(document))
    found = await repository.policies(name)
    assert (found.namespace, found.topic, found.offload) == (document, {}, None)
    assert found.plan(NO_DEFAULTS).threshold_bytes == 5
    await stage.store.put(topic_policies_key(NAME), encode(own))
    found = await repository.policies(name)
    assert (found.namespace, found.topic) == (document, own)
    assert found.offload == own["local"]["offload"]
    assert found.plan(NO_DEFAULTS).threshold_bytes == 6
    assert (await repository.policies(OTHER)).offload is None
    await stage.store.put(DEFAULTS_KEY, encode(NO_DEFAULTS))
    assert await repository.defaults() == NO_DEFAULTS
    await stage.store.put(DEFAULTS_KEY, b"?")
    with pytest.raises(MetadataError):
        await repository.defaults()
