"""Contract of every metadata store: leases.

Time passes only where the test says so, except on etcd, where it is real: there `form.ttl_s` is
short, and a test waits for the event rather than for the moment.
"""

import asyncio

import pytest

from magnetar.metadata.store import (
    Delete,
    EventKind,
    InvalidOperation,
    LeaseLost,
    MetadataStore,
    Put,
)

TTL_S = 3_600.0
"""Of leases that must not end here: nor later, in the middle of another test on the same etcd."""
WITHIN_S = 30.0


async def test_an_expired_lease_takes_its_keys_and_watches_see_it(form) -> None:
    store: MetadataStore = form.store
    lease = await store.grant_lease(form.ttl_s)
    assert lease.ttl_s == form.ttl_s
    await store.put("/owner/b", b"me", lease_id=lease.id)
    await store.put("/owner/a", b"me", lease_id=lease.id)
    before = await store.put("/owner/free", b"stays")
    watch = store.watch("/owner/")
    await form.advance(form.ttl_s * 0.25)
    assert lease.valid
    assert len(await store.list("/owner/")) == 3
    await form.advance(form.ttl_s * 0.85)
    assert not lease.valid
    events = [await asyncio.wait_for(anext(watch), WITHIN_S) for _ in range(2)]
    assert sorted(event.record.key for event in events) == ["/owner/a", "/owner/b"]
    assert {event.kind for event in events} == {EventKind.DELETE}
    assert all(event.record.revision > before for event in events)
    assert [record.key for record in await store.list("/owner/")] == ["/owner/free"]
    assert await store.revision() == events[-1].record.revision


async def test_keep_alive_counts_from_its_own_time(form) -> None:
    store: MetadataStore = form.store
    lease = await store.grant_lease(form.ttl_s)
    await store.put("/a", b"", lease_id=lease.id)
    for _ in range(5):
        deadline = lease.deadline
        await form.advance(form.ttl_s * 0.3)
        await lease.keep_alive()
        assert lease.valid
        assert lease.deadline >= deadline + form.ttl_s * 0.3
    assert await store.get("/a") is not None
    watch = store.watch("/a")
    await form.advance(form.ttl_s * 1.1)
    assert not lease.valid
    assert (await asyncio.wait_for(anext(watch), WITHIN_S)).kind is EventKind.DELETE
    assert await store.get("/a") is None


async def test_a_lost_lease_stays_lost(form) -> None:
    store: MetadataStore = form.store
    lease = await store.grant_lease(form.ttl_s)
    await form.advance(form.ttl_s * 1.1)
    assert not lease.valid
    with pytest.raises(LeaseLost):
        await lease.keep_alive()
    assert not lease.valid
    with pytest.raises(LeaseLost):
        await store.put("/a", b"", lease_id=lease.id)
    with pytest.raises(LeaseLost):
        await store.transact([Put("/b", b""), Put("/a", b"", lease_id=lease.id)])
    assert await store.list("") == []
    await lease.revoke()


async def test_a_write_hears_of_a_lost_lease_first(store: MetadataStore) -> None:
    lease = await store.grant_lease(TTL_S)
    await store.revoke_lease(lease.id)
    with pytest.raises(LeaseLost):
        await store.put("/a", b"", lease_id=lease.id)
    assert not lease.valid


@pytest.mark.parametrize("lease_id", [-1, 0, 1 << 40])
async def test_a_lease_that_never_was_is_lost(store: MetadataStore, lease_id: int) -> None:
    with pytest.raises(LeaseLost):
        await store.put("/a", b"", lease_id=lease_id)
    await store.revoke_lease(lease_id)
    assert await store.list("") == []


async def test_revoke_takes_the_keys_at_once(store: MetadataStore) -> None:
    lease, other = await store.grant_lease(TTL_S), await store.grant_lease(TTL_S)
    assert lease.id != other.id
    await store.transact([Put(f"/a/{i}", b"", lease_id=lease.id) for i in range(100)])
    last = await store.put("/b", b"", lease_id=other.id)
    await lease.revoke()
    assert not lease.valid
    assert other.valid
    assert await store.list("/a/") == []
    assert await store.get("/b") is not None
    assert await store.revision() == last + 1
    await lease.revoke()
    with pytest.raises(LeaseLost):
        await lease.keep_alive()
    await other.keep_alive()


async def test_a_key_goes_with_the_lease_that_wrote_it_last(store: MetadataStore) -> None:
    first, second = await store.grant_lease(TTL_S), await store.grant_lease(TTL_S)
    await store.put("/moved", b"1", lease_id=first.id)
    await store.put("/moved", b"2", lease_id=second.id)
    await store.put("/freed", b"1", lease_id=first.id)
    await store.put("/freed", b"2")
    await store.put("/recreated", b"1", lease_id=first.id)
    await store.transact([Delete("/recreated")])
    await store.put("/recreated", b"2")
    await first.revoke()
    assert [record.key for record in await store.list("")] == ["/freed", "/moved", "/recreated"]
    await second.revoke()
    assert [record.key for record in await store.list("")] == ["/freed", "/recreated"]


async def test_a_refused_write_does_not_move_a_key(store: MetadataStore) -> None:
    lease = await store.grant_lease(TTL_S)
    revision = await store.put("/a", b"1")
    with pytest.raises(Exception, match="is at revision"):
        await store.put("/a", b"2", expected=revision + 5, lease_id=lease.id)
    await lease.revoke()
    assert await store.get("/a") is not None


async def test_a_write_racing_with_revoke_is_refused_or_taken_back(store: MetadataStore) -> None:
    lease = await store.grant_lease(TTL_S)
    writes = [
        asyncio.ensure_future(store.put(f"/a/{i}", b"", lease_id=lease.id)) for i in range(20)
    ]
    await asyncio.sleep(0)
    await lease.revoke()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(result, (int, LeaseLost)) for result in results)
    assert await store.list("/a/") == []


async def test_leases_end_one_by_one(form) -> None:
    store: MetadataStore = form.store
    # Far apart: a store on real time looks for what has expired twice a second.
    leases = [await store.grant_lease(form.ttl_s * n) for n in (1, 2)]
    for i, lease in enumerate(leases):
        await store.put(f"/a/{i}", b"", lease_id=lease.id)
    watch = store.watch("/a/")
    await form.advance(form.ttl_s * 1.1)
    assert (await asyncio.wait_for(anext(watch), WITHIN_S)).record.key == "/a/0"
    assert [lease.valid for lease in leases] == [False, True]
    await form.advance(form.ttl_s * 1.0)
    assert (await asyncio.wait_for(anext(watch), WITHIN_S)).record.key == "/a/1"
    assert [lease.valid for lease in leases] == [False, False]


@pytest.mark.parametrize("ttl_s", [0, -1, float("inf"), float("nan")])
async def test_a_lease_lasts_a_positive_time(store: MetadataStore, ttl_s: float) -> None:
    with pytest.raises(InvalidOperation):
        await store.grant_lease(ttl_s)


async def test_somebody_elses_lease_is_revoked_by_its_id(store: MetadataStore) -> None:
    lease, other = await store.grant_lease(TTL_S), await store.grant_lease(TTL_S)
    await store.put("/a", b"", lease_id=lease.id)
    await store.put("/b", b"", lease_id=other.id)
    await store.revoke_lease(lease.id)
    assert [record.key for record in await store.list("/")] == ["/b"]
    with pytest.raises(LeaseLost):
        await store.put("/a", b"", lease_id=lease.id)
    with pytest.raises(LeaseLost):
        await lease.keep_alive()
    await store.revoke_lease(lease.id)  # it is gone: no error
