"""Resource groups over REST: statuses and texts as recorded from Apache Pulsar 4.2.4."""

import asyncio
from collections.abc import Callable

import pytest

from magnetar.broker.subscription.spec import SubType
from magnetar.wire.events import SendRun

from .support import Admin, Peer, entry

ALL = "~/resourcegroups"
NAMESPACE = "~/namespaces/t1/n1"
NONE = {"publishRateInMsgs": -1, "publishRateInBytes": -1} | {
    "dispatchRateInMsgs": -1,
    "dispatchRateInBytes": -1,
}


async def test_groups_are_created_changed_and_deleted(admin: Admin) -> None:
    assert (await admin.done("GET", ALL)).json() == []
    for method in ("GET", "DELETE"):
        missing = await admin.call(method, ALL + "/g1")
        assert (missing.status_code, missing.json()["reason"]) == (
            404,
            "ResourceGroup does not exist",
        )
    assert (await admin.done("PUT", ALL + "/g1", {})).status_code == 204
    assert (await admin.done("GET", ALL + "/g1")).json() == NONE
    await admin.done("PUT", ALL + "/g1", {"publishRateInMsgs": 10, "dispatchRateInBytes": 5})
    await admin.done("PUT", ALL + "/g1", {"publishRateInMsgs": 0, "dispatchRateInMsgs": None})
    changed = NONE | {"publishRateInMsgs": 0, "dispatchRateInBytes": 5}
    assert (await admin.done("GET", ALL + "/g1")).json() == changed
    await admin.done("PUT", ALL + "/a%20b", {})
    assert (await admin.done("GET", ALL)).json() == ["a b", "g1"]
    assert (await admin.done("DELETE", ALL + "/a%20b")).status_code == 204
    assert (await admin.call("POST", ALL + "/g1", {})).status_code == 405


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"publishRateInMsgs": "x"}, 400, "publishRateInMsgs"),
        ({"publishRateInMsgs": 3_000_000_000}, 400, "publishRateInMsgs"),
        ({"dispatchRateInBytes": 1 << 63}, 400, "dispatchRateInBytes"),
        ({"replicationDispatchRateInMsgs": 3}, 405, "replicationDispatchRateInMsgs"),
        (None, 400, "required"),
    ],
)
async def test_an_unusable_group_is_refused_and_not_stored(
    admin: Admin, body: object, status: int, named: str
) -> None:
    refused = await admin.call("PUT", ALL + "/g1", body)
    assert refused.status_code == status
    assert named in refused.json()["reason"]
    assert (await admin.done("GET", ALL)).json() == []
    assert (await admin.call("PUT", f"{ALL}/{'g' * 257}", {})).status_code == 412


async def test_a_namespace_is_put_into_a_group(admin: Admin) -> None:
    path = NAMESPACE + "/resourcegroup"
    absent = await admin.call("POST", path + "/g1")
    assert (absent.status_code, absent.json()["reason"]) == (412, "ResourceGroup does not exist")
    created = await admin.call("PUT", "~/namespaces/t1/n2", {"resource_group_name": "g1"})
    assert (created.status_code, created.json()["reason"]) == (412, "ResourceGroup does not exist")
    await admin.done("PUT", ALL + "/g1", {})
    assert (await admin.done("GET", path)).text == ""
    assert (await admin.done("POST", path + "/g1")).status_code == 204
    assert (await admin.done("GET", path)).text == "g1"
    assert (await admin.done("GET", NAMESPACE)).json()["resource_group_name"] == "g1"
    in_use = await admin.call("DELETE", ALL + "/g1")
    assert (in_use.status_code, in_use.json()["reason"]) == (412, "ResourceGroup is in use")
    for _ in range(2):
        assert (await admin.done("DELETE", path)).status_code == 204
    assert (await admin.done("GET", path)).text == ""
    await admin.done("PUT", "~/namespaces/t1/n2", {"resource_group_name": "g1"})
    assert (await admin.done("GET", "~/namespaces/t1/n2/resourcegroup")).text == "g1"
    await admin.done("DELETE", "~/namespaces/t1/n2")
    await admin.done("DELETE", ALL + "/g1")
    unknown = await admin.call("POST", "~/namespaces/t1/nope/resourcegroup/g1")
    assert unknown.status_code == 404


async def test_topics_of_a_group_share_its_rates(admin: Admin) -> None:
    """Two topics; the first takes all tokens, so the other's messages are held."""
    await admin.done("PUT", ALL + "/g1", {"publishRateInMsgs": 1, "dispatchRateInMsgs": 1})
    await admin.done("POST", NAMESPACE + "/resourcegroup/g1")
    first, second = await admin.topic("a"), await admin.topic("b")
    consumer = await admin.consumer("s", SubType.Shared, local="a")
    await _until(lambda: first.gate is not None and second.gate is not None)
    assert first.gate is not None
    assert second.gate is not None
    (limiter,) = first.gate.limiters
    assert second.gate.limiters == (limiter,)
    assert limiter.source == "resource group g1"
    throttle = first.subscriptions["s"].throttle
    assert throttle is not None
    assert [each.source for each in throttle.limiters] == ["resource group g1"]
    producer = await admin.producer("a")
    limiter.take(1_000_000, 0)
    assert isinstance(producer.sink, Peer)
    first.gate.publish(producer, SendRun(1, [0], [0], [1], [entry(b"x")], len(entry(b"x"))))
    assert not producer.sink.receipted.is_set()
    assert limiter.waiting == 1
    # Without the group, what was held is published.
    await admin.done("DELETE", NAMESPACE + "/resourcegroup")
    async with asyncio.timeout(20):
        await producer.sink.receipted.wait()
    assert first.gate is None
    assert second.gate is None
    assert isinstance(consumer.sink, Peer)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the watch of the store
            await asyncio.sleep(0.01)
