"""The deletion of a record below which others are created: mark, empty, delete."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import pytest
from tests.support.stalled_store import StalledStore

from magnetar.broker.catalog.deletion_mark import MarkedDeletion
from magnetar.core.errors import Conflict, MetadataError, NotFound
from magnetar.metadata.store import (
    BadRevision,
    Check,
    MetadataUnavailable,
    Operation,
    Record,
)

KEY = "/namespaces/t/n"
OLD = b'{"bundles":{}}'
"""As a release wrote it that knew no mark."""


@pytest.fixture
async def store() -> StalledStore:
    store = StalledStore()
    await store.put(KEY, OLD)
    return store


def deletion(store: StalledStore, written: list[Record] | None = None) -> MarkedDeletion:
    seen: list[Record] = [] if written is None else written
    return MarkedDeletion(
        store, KEY, what="Namespace t/n", absent="Namespace does not exist", written=seen.append
    )


async def marked(store: StalledStore) -> bool | None:
    """None if the record is missing."""
    record = await store.get(KEY)
    return None if record is None else bool(msgspec.json.decode(record.value).get("deleted"))


async def nothing(mark: Check | None = None) -> None:
    """Neither refuses nor deletes anything."""


async def refuse(mark: Check | None = None) -> None:
    raise Conflict("not empty")


async def test_it_is_emptied_under_the_mark_and_deleted(store: StalledStore) -> None:
    seen: list[bool | None] = []

    async def look(mark: Check | None = None) -> None:
        seen.append(await marked(store))

    written: list[Record] = []
    await deletion(store, written).run(look, look)
    assert seen == [False, True, True]
    assert await marked(store) is None
    assert [msgspec.json.decode(record.value) for record in written] == [
        {"bundles": {}, "deleted": True}
    ]
    with pytest.raises(NotFound, match="Namespace does not exist"):
        await deletion(store).run(nothing, nothing)


async def test_a_refused_deletion_writes_nothing(store: StalledStore) -> None:
    with pytest.raises(Conflict, match="not empty"):
        await deletion(store).run(refuse, nothing)
    record = await store.get(KEY)
    assert record is not None
    assert record.value == OLD


async def test_a_failed_deletion_takes_the_mark_back(store: StalledStore) -> None:
    written: list[Record] = []
    with pytest.raises(Conflict, match="not empty"):
        await deletion(store, written).run(nothing, refuse)
    assert await marked(store) is False
    assert [msgspec.json.decode(record.value)["deleted"] for record in written] == [True, False]


async def killed_on_the_way(store: StalledStore) -> None:
    begun = asyncio.Event()

    async def never_ends(mark: Check) -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(deletion(store).run(nothing, never_ends))
    await begun.wait()
    running.cancel()
    await asyncio.wait([running])
    assert await marked(store) is True


@pytest.mark.parametrize(
    ("killed", "check", "empty", "calls"),
    [
        (True, refuse, nothing, 1),
        (True, nothing, refuse, 1),
        (False, nothing, refuse, 1),
        (False, refuse, nothing, 0),
    ],
    ids=["killed and refused", "killed and failed", "failed", "refused"],
)
async def test_a_record_is_restored_after_a_part_of_what_is_below_it_may_have_been_deleted(
    store: StalledStore, killed: bool, check: Any, empty: Any, calls: int
) -> None:
    if killed:
        await killed_on_the_way(store)
    seen: list[bool | None] = []

    async def restored(document: dict[str, Any]) -> dict[str, Any]:
        seen.append(await marked(store))
        return {**document, "restored": True}

    again = MarkedDeletion(
        store, KEY, what="it", absent="gone", written=lambda _: None, restored=restored
    )
    with pytest.raises(Conflict, match="not empty"):
        await again.run(check, empty)
    assert seen == [True] * calls
    record = await store.get(KEY)
    assert record is not None
    assert msgspec.json.decode(record.value).get("restored", False) is bool(calls)
    assert not await marked(store)


async def test_a_repeated_deletion_finishes_one_that_was_killed(store: StalledStore) -> None:
    await killed_on_the_way(store)
    await deletion(store).run(nothing, nothing)
    assert await marked(store) is None


async def test_a_repeated_deletion_that_is_refused_takes_the_mark_of_the_killed_one_back(
    store: StalledStore,
) -> None:
    await killed_on_the_way(store)
    with pytest.raises(Conflict, match="not empty"):
        await deletion(store).run(refuse, nothing)
    assert await marked(store) is False


async def test_it_starts_over_if_the_record_changes_under_the_mark(store: StalledStore) -> None:
    """After a split of a bundle, for instance: the deletion continues under the new revision."""
    marks: list[Check] = []

    async def empty(mark: Check) -> None:
        marks.append(mark)
        record = await store.get(KEY)
        assert record is not None
        assert mark == Check(KEY, record.revision)
        if len(marks) == 1:
            await store.put(KEY, record.value)

    await deletion(store).run(nothing, empty)
    assert len(set(marks)) == 2
    assert await marked(store) is None


async def test_it_ends_if_another_deletion_removed_the_mark(store: StalledStore) -> None:
    """Something may have been created below it since."""

    async def empty(mark: Check) -> None:
        with pytest.raises(Conflict, match="not empty"):
            await deletion(store).run(refuse, nothing)

    with pytest.raises(Conflict, match="repeat this one"):
        await deletion(store).run(nothing, empty)
    assert await marked(store) is False


async def test_a_record_that_was_created_again_is_not_deleted(store: StalledStore) -> None:
    async def empty(mark: Check) -> None:
        await deletion(store).run(nothing, nothing)
        await store.put(KEY, OLD)

    with pytest.raises(Conflict, match="repeat this one"):
        await deletion(store).run(nothing, empty)
    record = await store.get(KEY)
    assert record is not None
    assert record.value == OLD


async def test_nothing_is_marked_once_the_mark_above_it_is_gone(store: StalledStore) -> None:
    await store.put("/above", b"{}")
    above = MarkedDeletion(
        store,
        KEY,
        what="Namespace t/n",
        absent="Namespace does not exist",
        written=lambda _: None,
        under=Check("/above", 1),
    )
    with pytest.raises(BadRevision, match="/above"):
        await above.run(nothing, refuse)
    assert not await marked(store)


async def test_it_fails_if_the_record_keeps_changing(store: StalledStore) -> None:
    async def change(mark: Check) -> None:
        record = await store.get(KEY)
        assert record is not None
        await store.put(KEY, record.value)

    with pytest.raises(Conflict, match="repeat its deletion"):
        await deletion(store).run(nothing, change)
    assert await marked(store) is False, "else nothing can be created below it"


async def test_a_mark_that_is_not_answered_cannot_land_later(store: StalledStore) -> None:
    """Otherwise the namespace would accept no topics and never be deleted."""
    late: list[Coroutine[Any, Any, int]] = []
    transact = store.transact

    async def unanswered(operations: Sequence[Operation]) -> int:
        if not late:
            late.append(transact(operations))
            raise MetadataUnavailable("no answer came")
        return await transact(operations)

    store.transact = unanswered  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable):
        await deletion(store).run(nothing, nothing)
    with pytest.raises(BadRevision):
        await late[0]
    assert await marked(store) is False


async def test_a_mark_that_cannot_be_taken_back_hides_no_reason(store: StalledStore) -> None:
    async def fail(mark: Check) -> None:
        store.hold(KEY)
        store.refusing = True
        raise MetadataError("a topic could not be deleted")

    with pytest.raises(MetadataError, match="a topic could not be deleted"):
        await deletion(store).run(nothing, fail)
    store.release()
    assert await marked(store) is True
    await deletion(store).run(nothing, nothing)
    assert await marked(store) is None
