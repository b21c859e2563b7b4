"""Lists and children on etcd come in pages: however small, the answer is the same."""

import pytest
from tests.support.etcd import EtcdMember, open_on

from magnetar.metadata.etcd import store as etcd_store

NAMES = [
    "/a/b",
    "/a/b-1",
    "/a/b-1/x",
    "/a/b/c",
    "/a/b/d/e",
    "/a/b0",
    "/a/b0/x",
    "/a/c/x",
    "/a/c/y",
    "/a/c/z",
    "/a/\U0010ffff/x",
    "/ab/x",
]


@pytest.mark.parametrize("page", [1, 2, 3, 5, 100])
async def test_pages_leave_nothing_out(
    etcd: EtcdMember, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(etcd_store, "PAGE_RECORDS", page)
    store = await open_on(etcd)
    for name in NAMES:
        await store.put(name, b"")
    assert [record.key for record in await store.list("/")] == sorted(NAMES)
    assert [record.key for record in await store.list("/a/b")] == sorted(
        name for name in NAMES if name.startswith("/a/b")
    )
    assert await store.children("/") == ["a", "ab"]
    assert await store.children("/a/") == ["b", "b-1", "b0", "c", "\U0010ffff"]
    assert await store.children("/a/b/") == ["c", "d"]
    await store.close()
