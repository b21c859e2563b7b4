"""Requests about many topics or subscriptions apply to all of them, then answer a refusal."""

import asyncio

import pytest
from tests.support.settings import changed

from magnetar.admin.bulk import for_each
from magnetar.broker.subscription.spec import SubType
from magnetar.core.errors import PreconditionFailed
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import compose

from .support import Admin, append, entry

PATH = "~/persistent/t1/n1"
NAMESPACE = "~/namespaces/t1/n1"
EARLIEST = {"ledgerId": -1, "entryId": -1}
MESSAGES = 3


async def test_all_actions_run_in_order_and_the_first_refusal_is_raised() -> None:
    done: list[str] = []

    async def do(thing: str) -> None:
        done.append(thing)
        if thing.startswith("no"):
            raise PreconditionFailed(thing)

    with pytest.raises(PreconditionFailed, match="no 1"):
        await for_each(["a", "no 1", "b", "no 2", "c"], do)
    assert done == ["a", "no 1", "b", "no 2", "c"]
    await for_each(["d"], do)
    await for_each([], do)


async def test_an_unexpected_error_ends_the_loop_at_once() -> None:
    """A refusal concerns the client; an unexpected error leaves an unknown state."""
    done: list[int] = []

    async def do(number: int) -> None:
        done.append(number)
        if number == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await for_each(range(3), do)
    assert done == [0, 1]


async def fill(admin: Admin, local: str, *subscriptions: str) -> None:
    topic = await admin.topic(local)
    for name in subscriptions:
        await admin.done("PUT", f"{PATH}/{local}/subscription/{name}", EARLIEST)
    for number in range(MESSAGES):
        await append(topic, entry(b"x", number))
    # Nothing in a ledger is older than the millisecond in which the ledger was created.
    created_ms = max(item.created_ms for item in topic.managed_ledger.ledgers)
    while topic.judged_ms() <= created_ms:  # noqa: ASYNC110 - a clock has no event
        await asyncio.sleep(0.001)


async def backlogs(admin: Admin, local: str) -> dict[str, int]:
    topic = await admin.topic(local)
    return {name: item.cursor.backlog for name, item in topic.subscriptions.items()}


async def test_all_subscriptions_expire_although_one_has_an_empty_backlog(admin: Admin) -> None:
    await fill(admin, "a", "a", "b", "c")
    await admin.done("POST", f"{PATH}/a/subscription/b/skip_all")
    answer = await admin.call("POST", f"{PATH}/a/all_subscription/expireMessages/0")
    assert await backlogs(admin, "a") == {"a": 0, "b": 0, "c": 0}
    assert answer.status_code == 409
    assert "for subscription b due to ongoing message expiration not finished" in answer.text


async def test_every_partition_expires_although_one_has_an_empty_backlog(admin: Admin) -> None:
    await admin.done("PUT", f"{PATH}/p/partitions", 3)
    await admin.done("PUT", f"{PATH}/p/subscription/s", EARLIEST)
    for index in (0, 2):
        await fill(admin, f"p-partition-{index}")
    answer = await admin.call("POST", f"{PATH}/p/subscription/s/expireMessages/0")
    assert answer.status_code == 409
    assert [await backlogs(admin, f"p-partition-{index}") for index in range(3)] == [{"s": 0}] * 3


async def test_a_namespace_is_unsubscribed_except_from_topics_in_use(admin: Admin) -> None:
    for local in ("a", "b", "c"):
        await fill(admin, local, "s")
    await admin.consumer("s", SubType.Shared, "b")
    answer = await admin.call("POST", f"{NAMESPACE}/unsubscribe/s")
    assert answer.status_code == 412
    left = {local: set(await backlogs(admin, local)) for local in ("a", "b", "c")}
    assert left == {"a": set(), "b": {"s"}, "c": set()}


async def test_a_check_of_backlog_quotas_enforces_them(admin: Admin) -> None:
    await fill(admin, "a", "s")
    quota = {"limitSize": 1, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    await admin.done("POST", f"{PATH}/a/backlogQuota", quota)
    await (await admin.topic("a")).managed_ledger.roll_over()
    await admin.done("GET", "~/brokers/backlog-quota-check")
    assert await backlogs(admin, "a") == {"s": 0}


async def test_the_internal_configuration_has_the_address_of_the_metadata_store(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told(settings: object) -> tuple[str, str]:
        monkeypatch.setattr(admin.service, "settings", settings)
        actual = (await admin.done("GET", "~/brokers/internal-configuration")).json()
        return actual["metadataStoreUrl"], actual["ledgersRootPath"]

    cluster = compose(BrokerProcessSettings, metadata_url="etcd:http://e1:2379,http://e2:2379")
    assert await told(cluster) == ("etcd:http://e1:2379,http://e2:2379", "/magnetar/ledgers")
    other = changed(cluster, metadata_root="/b/")
    assert await told(other) == ("etcd:http://e1:2379,http://e2:2379", "/b/ledgers")


async def test_a_tenant_is_deleted_completely_or_not_at_all(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(admin, "a", "s")
    settings = admin.service.settings
    forced = changed(settings, force_delete_tenant=True, force_delete_namespace=False)
    monkeypatch.setattr(admin.service, "settings", forced)
    refused = await admin.call("DELETE", "~/tenants/t1?force=true")
    assert refused.status_code == 405
    assert await backlogs(admin, "a") == {"s": MESSAGES}
    allowed = changed(forced, force_delete_namespace=True)
    monkeypatch.setattr(admin.service, "settings", allowed)
    await admin.done("DELETE", "~/tenants/t1?force=true")
    assert (await admin.call("GET", "~/tenants/t1")).status_code == 404
