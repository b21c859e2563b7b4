"""Contract of every metadata store: records, compare-and-swap, transactions, lists, bounds."""

import asyncio

import pytest

from magnetar.metadata.store import (
    ABSENT,
    KEY_BYTES_MAX,
    TRANSACTION_OPS_MAX,
    VALUE_BYTES_MAX,
    BadRevision,
    Check,
    Delete,
    InvalidOperation,
    MetadataStore,
    Put,
    Record,
    StoreClosed,
)


async def keys(store: MetadataStore, prefix: str) -> list[str]:
    return [record.key for record in await store.list(prefix)]


async def test_get_returns_what_put_wrote_with_its_revision(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    first = await store.put("/a", b"one")
    assert await store.get("/a") == Record("/a", b"one", first)
    second = await store.put("/a", b"")
    assert second > first >= 1
    assert await store.get("/a") == Record("/a", b"", second)
    assert await store.revision() == second


async def test_a_callers_buffer_may_change_after_the_write(store: MetadataStore) -> None:
    value = bytearray(b"before")
    await store.put("/a", value)  # type: ignore[arg-type]
    value[:] = b"after!"
    record = await store.get("/a")
    assert record is not None
    assert record.value == b"before"


async def test_put_over_an_expected_revision(store: MetadataStore) -> None:
    first = await store.put("/a", b"1", expected=ABSENT)
    second = await store.put("/a", b"2", expected=first)
    with pytest.raises(BadRevision) as failure:
        await store.put("/a", b"3", expected=first)
    error = failure.value
    assert (error.key, error.expected, error.actual) == ("/a", first, second)
    assert error.http_status == 409
    assert await store.get("/a") == Record("/a", b"2", second)
    assert await store.revision() == second


async def test_absent_means_that_the_key_must_not_exist(store: MetadataStore) -> None:
    with pytest.raises(BadRevision) as failure:
        await store.put("/a", b"1", expected=7)
    assert failure.value.actual == ABSENT
    first = await store.put("/a", b"1")
    with pytest.raises(BadRevision):
        await store.put("/a", b"2", expected=ABSENT)
    assert await store.delete("/a", expected=first)
    recreated = await store.put("/a", b"3", expected=ABSENT)
    with pytest.raises(BadRevision):
        await store.put("/a", b"4", expected=first)
    assert recreated > first


async def test_delete_says_whether_the_key_was_there(store: MetadataStore) -> None:
    revision = await store.put("/a", b"1")
    with pytest.raises(BadRevision):
        await store.delete("/a", expected=revision + 1)
    assert await store.delete("/a") is True
    assert await store.get("/a") is None
    after = await store.revision()
    assert after == revision + 1
    assert await store.delete("/a") is False
    assert await store.delete("/a", expected=ABSENT) is False
    assert await store.revision() == after
    with pytest.raises(BadRevision):
        await store.delete("/a", expected=revision)


async def test_a_transaction_writes_all_under_one_revision(store: MetadataStore) -> None:
    old = await store.put("/old", b"x")
    guard = await store.put("/guard", b"g")
    revision = await store.transact(
        [Put("/new", b"1", ABSENT), Delete("/old", old), Check("/guard", guard), Put("/b", b"2")]
    )
    assert revision == guard + 1 == await store.revision()
    assert await store.list("/") == [
        Record("/b", b"2", revision),
        Record("/guard", b"g", guard),
        Record("/new", b"1", revision),
    ]


@pytest.mark.parametrize(
    "misfit",
    [Check("/there", ABSENT), Check("/missing", 1), Put("/there", b"n", ABSENT), Delete("/x", 1)],
    ids=["check-absent", "check-present", "put", "delete"],
)
async def test_a_transaction_with_one_misfit_writes_nothing(
    store: MetadataStore, misfit: Put | Delete | Check
) -> None:
    there = await store.put("/there", b"t")
    for operations in ([Put("/new", b"1"), misfit], [misfit, Put("/new", b"1")]):
        with pytest.raises(BadRevision) as failure:
            await store.transact(operations)
        assert failure.value.key == misfit.key
    assert await store.list("") == [Record("/there", b"t", there)]
    assert await store.revision() == there


async def test_a_transaction_that_changes_nothing_makes_no_revision(store: MetadataStore) -> None:
    revision = await store.put("/a", b"1")
    assert await store.transact([]) == revision
    assert await store.transact([Check("/a", revision), Check("/b", ABSENT)]) == revision
    assert await store.transact([Delete("/b"), Delete("/c", ABSENT)]) == revision
    assert await store.revision() == revision


async def test_a_transaction_names_each_key_once(store: MetadataStore) -> None:
    for second in (Put("/a", b"2"), Delete("/a"), Check("/a", ABSENT)):
        with pytest.raises(InvalidOperation):
            await store.transact([Put("/a", b"1"), second])
    assert await store.list("") == []


async def test_bounds_are_kept_to_the_last_byte(store: MetadataStore) -> None:
    largest = bytes(VALUE_BYTES_MAX)
    await store.put("/big", largest)
    with pytest.raises(InvalidOperation):
        await store.put("/big", largest + b"x")
    longest = "/" + "é" * ((KEY_BYTES_MAX - 1) // 2) + "x" * ((KEY_BYTES_MAX - 1) % 2)
    await store.put(longest, b"")
    with pytest.raises(InvalidOperation):
        await store.put(longest + "x", b"")
    most = [Put(f"/t/{i:04}", b"") for i in range(TRANSACTION_OPS_MAX)]
    await store.transact(most)
    with pytest.raises(InvalidOperation):
        await store.transact([*most, Put("/t/x", b"")])
    assert len(await store.list("/t/")) == TRANSACTION_OPS_MAX
    record = await store.get("/big")
    assert record is not None
    assert record.value == largest


@pytest.mark.parametrize("key", ["", "a", "/", "/a/", "//a", "/a//b", "/a\0b", "/\ud800"])
async def test_a_key_is_a_path(store: MetadataStore, key: str) -> None:
    with pytest.raises(InvalidOperation) as failure:
        await store.put(key, b"")
    assert failure.value.http_status == 400
    with pytest.raises(InvalidOperation):
        await store.get(key)
    with pytest.raises(InvalidOperation):
        await store.delete(key)


async def test_negative_revisions_are_refused(store: MetadataStore) -> None:
    with pytest.raises(InvalidOperation):
        await store.put("/a", b"", expected=-1)
    with pytest.raises(InvalidOperation):
        await store.transact([Check("/a", -1)])


async def test_list_is_by_string_prefix_in_key_order(store: MetadataStore) -> None:
    names = ["/b", "/a/z", "/ab", "/a", "/a/b/c", "/a/b", "/a-", "/a/é", "/a/𝄞", "/a/\uffff", "/a0"]
    for name in names:
        await store.put(name, name.encode())
    assert await keys(store, "/a/") == ["/a/b", "/a/b/c", "/a/z", "/a/é", "/a/\uffff", "/a/𝄞"]
    assert await keys(store, "/a") == sorted(name for name in names if name.startswith("/a"))
    assert await keys(store, "/a/b") == ["/a/b", "/a/b/c"]
    assert await keys(store, "") == await keys(store, "/") == sorted(names)
    assert await keys(store, "/c") == []
    assert await keys(store, "/a/b/c/d") == []
    assert [record.value.decode() for record in await store.list("/a/")] == await keys(store, "/a/")


async def test_children_are_the_next_segments_once_each(store: MetadataStore) -> None:
    for name in [
        "/a/b",
        "/a/b-1",
        "/a/b/c",
        "/a/b/d/e",
        "/a/c/x",
        "/a/c/y",
        "/ab/x",
        "/a/b0",
        "/é/x",
    ]:
        await store.put(name, b"")
    assert await store.children("/") == ["a", "ab", "é"]
    assert await store.children("/a/") == ["b", "b-1", "b0", "c"]
    assert await store.children("/a/b/") == ["c", "d"]
    assert await store.children("/nothing/") == []
    for prefix in ("/a", "a/", ""):
        with pytest.raises(InvalidOperation):
            await store.children(prefix)


async def test_lists_and_children_forget_deleted_keys(store: MetadataStore) -> None:
    for name in ("/a/b/1", "/a/b/2", "/a/c"):
        await store.put(name, b"")
    await store.delete("/a/b/1")
    assert await store.children("/a/") == ["b", "c"]
    await store.transact([Delete("/a/b/2"), Delete("/a/c")])
    assert await store.children("/a/") == []
    assert await store.list("/a") == []


async def test_of_many_racing_creators_one_wins(store: MetadataStore) -> None:
    results = await asyncio.gather(
        *(store.put("/owner", str(i).encode(), expected=ABSENT) for i in range(50)),
        return_exceptions=True,
    )
    won = [(i, result) for i, result in enumerate(results) if isinstance(result, int)]
    assert len(won) == 1
    winner, revision = won[0]
    assert await store.get("/owner") == Record("/owner", str(winner).encode(), revision)
    losers = [result for result in results if isinstance(result, BadRevision)]
    assert len(losers) == 49
    assert {error.actual for error in losers} == {revision}


async def test_a_loser_reads_the_winner_at_once(store: MetadataStore) -> None:
    """Increment by compare-and-swap: a retry after BadRevision always sees the newer record."""
    await store.put("/n", b"0")
    lost = 0

    async def increment() -> None:
        nonlocal lost
        while True:
            record = await store.get("/n")
            assert record is not None
            try:
                value = str(int(record.value) + 1).encode()
                await store.put("/n", value, expected=record.revision)
                return
            except BadRevision as error:
                behind = error.actual
            lost += 1
            newer = await store.get("/n")
            assert newer is not None
            assert newer.revision >= behind

    await asyncio.gather(*(increment() for _ in range(20)))
    record = await store.get("/n")
    assert record is not None
    assert record.value == b"20"
    assert lost > 0


async def test_concurrent_writes_get_distinct_growing_revisions(store: MetadataStore) -> None:
    start = await store.revision()
    revisions = await asyncio.gather(*(store.put(f"/k/{i}", b"") for i in range(300)))
    assert sorted(revisions) == list(range(start + 1, start + 301))
    assert {record.revision for record in await store.list("/k/")} == set(revisions)


async def test_everything_refuses_after_close(store: MetadataStore) -> None:
    await store.put("/a", b"")
    lease = await store.grant_lease(10)
    await store.close()
    await store.close()
    for call in (
        store.get("/a"),
        store.list("/"),
        store.children("/"),
        store.put("/a", b""),
        store.delete("/a"),
        store.transact([]),
        store.revision(),
        store.grant_lease(10),
        lease.keep_alive(),
    ):
        with pytest.raises(StoreClosed):
            await call
    with pytest.raises(StoreClosed):
        store.watch("/")
    assert not lease.valid


async def test_close_finishes_the_writes_under_way(store: MetadataStore) -> None:
    watch = store.watch("/")
    writes = [asyncio.ensure_future(store.put(f"/k/{i}", b"")) for i in range(20)]
    await asyncio.sleep(0)
    await store.close()
    results = await asyncio.gather(*writes, return_exceptions=True)
    written = [result for result in results if isinstance(result, int)]
    assert all(isinstance(result, (int, StoreClosed)) for result in results)
    seen = [(await anext(watch)).record.revision for _ in written]
    assert seen == sorted(written)
    with pytest.raises(StoreClosed):
        await anext(watch)
