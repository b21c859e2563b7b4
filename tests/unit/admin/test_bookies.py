"""Bookies over REST: their list, their racks, and drains."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.support.memory_bookie import MemoryBookie

from magnetar.admin.app import create_app
from magnetar.admin.cluster.routing import ClusterParts
from magnetar.admin.metrics.page import MetricsPage
from magnetar.admin.routers.bookies import REASON_CHARACTERS_MAX
from magnetar.autorecovery.drain import drains
from magnetar.autorecovery.drain.drains import DrainState
from magnetar.bookie.registration import draining_key
from magnetar.ledger.bookies import BookieInfo, LocalBookies

from .support import Admin, start_service, stop_service
from .test_peers import Owner

DRAIN = "~/magnetar/bookies/b1/drain"


class InRacks(LocalBookies):
    """A set of living bookies, some of them in a rack."""

    def __init__(self, racks: dict[str, str]) -> None:
        super().__init__([MemoryBookie(name, "first") for name in racks])
        self._racks = racks

    def living(self) -> Sequence[BookieInfo]:
        return list(self._in_racks())

    def _in_racks(self) -> Iterator[BookieInfo]:
        for info in super().living():
            rack = self._racks[info.identity.bookie_id]
            yield replace(info, rack=rack) if rack else info


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    """A broker of a cluster with three bookies."""
    service = await start_service()
    page = MetricsPage(service)
    cluster = ClusterParts(Owner(), bookies=InRacks({"b1": "/r1", "b2": "", "b3": "/r2"}))
    transport = httpx.ASGITransport(create_app(service, page, cluster=cluster))
    async with httpx.AsyncClient(transport=transport, base_url=service.http_url) as http:
        yield Admin(service, page, http)
    await cluster.close()
    await stop_service(service)


async def document(admin: Admin, method: str, path: str, *body: object) -> Any:
    return (await admin.done(method, path, *body)).json()


async def test_bookies_are_those_of_the_cluster_with_their_racks(admin: Admin) -> None:
    actual = await document(admin, "GET", "~/bookies/all")
    assert actual == {"bookies": [{"bookieId": name} for name in ("b1", "b2", "b3")]}
    racks = await document(admin, "GET", "~/bookies/racks-info")
    assert racks == {"default": {"b1": {"rack": "/r1"}, "b3": {"rack": "/r2"}}}


async def test_racks_and_groups_of_bookies_are_set_shown_and_deleted(admin: Admin) -> None:
    path = "~/bookies/racks-info/b1"
    missing = await admin.call("GET", path)
    assert missing.status_code == 404
    reason = "Bookie rack placement configuration not found: b1"
    assert missing.json()["reason"] == reason
    await admin.done("POST", path + "?group=g1", {"rack": "/eu/r7", "hostname": "h1"})
    await admin.done("POST", "~/bookies/racks-info/b2?group=g1", {"rack": "r8"})
    assert await document(admin, "GET", path) == {"rack": "/eu/r7", "hostname": "h1"}
    racks = await document(admin, "GET", "~/bookies/racks-info")
    assert racks == {
        "g1": {"b1": {"rack": "/eu/r7", "hostname": "h1"}, "b2": {"rack": "r8"}},
        "default": {"b3": {"rack": "/r2"}},
    }
    await admin.done("POST", path + "?group=g2", {"rack": "/eu/r7"})
    racks = await document(admin, "GET", "~/bookies/racks-info")
    assert sorted(racks["g1"]) == ["b2"], "a bookie is in one group"
    for query, body, status, text in (
        ("", {"rack": "/r"}, 412, "Bookie 'group' parameters is missing"),
        ("?group=g", {"rack": "/"}, 400, "rack name is invalid"),
        ("?group=g", {}, 400, "rack name is invalid"),
        ("?group=a,b", {"rack": "/r"}, 412, "a group no comma"),
    ):
        refused = await admin.call("POST", path + query, body)
        assert (refused.status_code, text in refused.json()["reason"]) == (status, True), text
    await admin.done("DELETE", path)
    deleted = await admin.call("DELETE", path)
    assert (deleted.status_code, deleted.json()["reason"]) == (404, reason)


async def test_the_health_of_ledgers_is_about_the_bookies_of_the_cluster(admin: Admin) -> None:
    health = await document(admin, "GET", "~/magnetar/ledgers/health")
    assert [item["bookieId"] for item in health["bookies"]] == ["b1", "b2", "b3"]
    assert (health["healthy"], health["auditedBySomebody"]) == (False, False)
    assert "no process runs autorecovery" in health["reason"]


async def test_a_requested_drain_is_recorded_and_shown_until_it_is_cancelled(
    admin: Admin,
) -> None:
    store = admin.service.store
    assert await document(admin, "GET", "~/magnetar/bookies/drains") == []
    before_ms = admin.service.clock.now_ms()
    begun = await admin.call("POST", DRAIN, {"reason": "scale-down"})
    assert begun.status_code == 202
    recorded = await drains.read(store, "b1")
    assert recorded is not None
    assert (recorded.bookie_id, recorded.reason) == ("b1", "scale-down")
    assert recorded.state is DrainState.REQUESTED
    assert before_ms <= recorded.requested_ms <= admin.service.clock.now_ms()
    for shown in (begun.json(), await document(admin, "GET", DRAIN)):
        assert shown == {
            "bookieId": "b1",
            "state": "requested",
            "requestedMs": recorded.requested_ms,
            "updatedMs": recorded.requested_ms,
            "reason": "scale-down",
        }
    # A second request continues the drain unchanged.
    again = await document(admin, "POST", DRAIN, {"reason": "another"})
    assert again["reason"] == "scale-down"
    await admin.done("POST", "~/magnetar/bookies/b2/drain")
    listed = await document(admin, "GET", "~/magnetar/bookies/drains")
    assert [(item["bookieId"], item.get("reason")) for item in listed] == [
        ("b1", "scale-down"),
        ("b2", None),
    ]
    await store.put(draining_key("b1"), b"")
    assert (await admin.call("DELETE", DRAIN)).status_code == 204
    assert await store.get(draining_key("b1")) is None, "it takes new ledgers again"
    assert [item.bookie_id for item in await drains.read_all(store)] == ["b2"]
    for method in ("GET", "DELETE"):
        gone = await admin.call(method, DRAIN)
        assert (gone.status_code, gone.json()) == (
            404,
            {"reason": "Bookie b1 is not being emptied"},
        )


@pytest.mark.parametrize("over", [0, 1])
async def test_the_reason_of_a_drain_is_kept_up_to_its_bound(admin: Admin, over: int) -> None:
    reason = "x" * REASON_CHARACTERS_MAX
    await admin.done("POST", DRAIN, {"reason": reason + "y" * over})
    assert (await document(admin, "GET", DRAIN))["reason"] == reason


async def test_a_bookies_name_has_no_slash(admin: Admin) -> None:
    """With a slash, its record would have the key of another type of record."""
    for method in ("GET", "POST", "DELETE"):
        answer = await admin.call(method, "~/magnetar/bookies/a%2Fb/drain")
        assert (answer.status_code, answer.json()) == (
            412,
            {"reason": "A bookie's name has no slash"},
        )
    assert await drains.read_all(admin.service.store) == []
