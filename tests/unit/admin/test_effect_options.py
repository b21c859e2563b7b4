"""The effect of policies: each parameter is tried, alone and at its level."""

from typing import Any

import pytest

from magnetar.admin.routers import effect
from magnetar.core.clock import SystemClock

from .support import Admin, topic_name

NAMESPACE = "~/namespaces/t1/n1"
OF_NAMESPACE = "~/magnetar/namespaces/t1/n1/effect"
OF_TOPIC = "~/magnetar/persistent/t1/n1/{}/effect"
EARLIEST = {"ledgerId": -1, "entryId": -1}
KEEPS_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
HOLD, REFUSE, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
SIZE, AGE = "destination_storage", "message_age"
BOTH = "?backlogQuotaSize=9&backlogQuotaTime=8"


async def shown(admin: Admin, path: str, query: str = "") -> Any:
    return (await admin.done("GET", path + query)).json()


def size(limit: int, policy: str) -> dict[str, object]:
    return {SIZE: {"limitSize": limit, "limitTime": -1, "policy": policy}}


def age(limit: int, policy: str) -> dict[str, object]:
    return {AGE: {"limitSize": -1, "limitTime": limit, "policy": policy}}


@pytest.mark.parametrize(
    ("query", "tried"),
    [
        ("", {}),
        (
            "?retentionTimeInMinutes=5&retentionSizeInMB=7",
            {"retention": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7}},
        ),
        (
            "?retentionTimeInMinutes=0&retentionSizeInMB=0",
            {"retention": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}},
        ),
        ("?messageTTL=60", {"messageTTL": 60}),
        ("?messageTTL=", {}),
        ("?backlogQuotaSize=9", size(9, HOLD)),
        ("?backlogQuotaTime=8", age(8, HOLD)),
        (BOTH, size(9, HOLD) | age(8, HOLD)),
        (f"?backlogQuotaSize=9&backlogQuotaPolicy={EVICT}", size(9, EVICT)),
        (f"?backlogQuotaTime=8&backlogQuotaPolicy={EVICT}", age(8, EVICT)),
        (
            f"{BOTH}&backlogQuotaSizePolicy={EVICT}&backlogQuotaPolicy={REFUSE}",
            size(9, EVICT) | age(8, REFUSE),
        ),
        (
            f"{BOTH}&backlogQuotaTimePolicy={EVICT}",
            size(9, HOLD) | age(8, EVICT),
        ),
    ],
)
async def test_parameters_are_tried_and_other_policies_apply_as_set(
    admin: Admin, query: str, tried: dict[str, Any]
) -> None:
    await admin.topic()
    await admin.done("POST", NAMESPACE + "/retention", KEEPS_ALL)
    await admin.done("POST", NAMESPACE + "/messageTTL", 7_000)
    for kind, limit in ((SIZE, {"limitSize": 1 << 40}), (AGE, {"limitTime": 1_000_000})):
        quota = {"policy": REFUSE, **limit}
        await admin.done("POST", f"{NAMESPACE}/backlogQuota?backlogQuotaType={kind}", quota)
    holds = (await shown(admin, OF_TOPIC.format("a"), query))["holds"]
    quotas = size(1 << 40, REFUSE) | age(1_000_000, REFUSE)
    quotas |= {kind: tried[kind] for kind in (SIZE, AGE) if kind in tried}
    assert holds == {
        "retention": tried.get("retention", KEEPS_ALL),
        "messageTTL": tried.get("messageTTL", 7_000),
        "backlogQuotaMap": quotas,
    }


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (f"backlogQuotaSizePolicy={EVICT}", "backlogQuotaSizePolicy needs backlogQuotaSize"),
        (
            f"backlogQuotaTimePolicy={EVICT}&backlogQuotaSize=1",
            "backlogQuotaTimePolicy needs backlogQuotaTime",
        ),
        ("backlogQuotaTime=1&backlogQuotaPolicy=never", "policy must be one of"),
        ("backlogQuotaSize=-2", "limitSize must be -1 or more"),
        ("retentionTimeInMinutes=0&retentionSizeInMB=1", "a limit of 0 keeps nothing"),
        ("messageTTL=1.5", "Query parameter messageTTL must be a number, not '1.5'"),
    ],
)
async def test_an_invalid_option_is_refused_by_name(admin: Admin, query: str, reason: str) -> None:
    await admin.topic()
    for path in (OF_TOPIC.format("a"), OF_NAMESPACE):
        answer = await admin.call("GET", f"{path}?{query}")
        assert answer.status_code == 400
        assert reason in answer.json()["reason"].replace(":", "")


async def filled(admin: Admin, local: str, entries: int = 2) -> None:
    """Returns a topic whose first ledger is closed and retained by no subscription."""
    await admin.publish([b"x" * 100] * entries, local)
    await (await admin.topic(local)).managed_ledger.roll_over()
    await admin.publish([b"the ledger that is written is kept"], local)


async def test_a_topics_own_policy_overrides_the_one_tried_on_its_namespace(
    admin: Admin,
) -> None:
    await admin.done("POST", NAMESPACE + "/retention", KEEPS_ALL)
    for local in ("own", "other"):
        await filled(admin, local)
    await admin.done("POST", "~/persistent/t1/n1/own/retention", KEEPS_ALL)
    query = "?retentionTimeInMinutes=0&retentionSizeInMB=0"
    actual = await shown(admin, OF_NAMESPACE, query)
    assert set(actual["topics"]) == {str(topic_name("other"))}
    # On the topic itself, the parameter replaces the topic's own policy.
    assert (await shown(admin, OF_TOPIC.format("own"), query))["deletes"]["ledgers"] == 1


async def test_the_effect_on_unloaded_topics_comes_from_their_records(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any number of topics, and for topics that are deleted meanwhile."""
    monkeypatch.setattr(effect, "RECORDS_AT_ONCE_MAX", 2)
    await admin.done("POST", NAMESPACE + "/retention", KEEPS_ALL)
    for number in range(5):
        await filled(admin, f"t{number}", number + 1)
        await admin.service.topics.unload(topic_name(f"t{number}"))
    await filled(admin, "served", 7)
    query = "?retentionTimeInMinutes=0&retentionSizeInMB=0"
    actual = await shown(admin, OF_NAMESPACE, query)
    assert (actual["topics_total"], actual["from_records"], actual["left_off"]) == (6, 5, 0)
    by_name = {name.rpartition("/")[2]: item for name, item in actual["topics"].items()}
    # The last ledger of an unloaded topic is closed, so it is deleted as well.
    assert {name: item["deletes"]["entries"] for name, item in by_name.items()} == {
        "served": 7,
        **{f"t{number}": number + 2 for number in range(5)},
    }
    assert actual["deletes"]["entries"] == 7 + 2 + 3 + 4 + 5 + 6
    assert all(item["holds"]["retention"] != KEEPS_ALL for item in by_name.values())
    assert all(topic_name(f"t{number}") not in loaded(admin) for number in range(5))


def loaded(admin: Admin) -> set[object]:
    return {topic.name for topic in admin.service.topics}


async def test_a_topic_that_is_deleted_meanwhile_is_omitted_from_the_effect(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for local in ("a", "b"):
        await filled(admin, local)
        await admin.service.topics.unload(topic_name(local))
    names = admin.service.topics.names

    async def then_deleted(*arguments: Any, **named: Any) -> Any:
        actual = await names(*arguments, **named)
        await admin.service.topics.delete(topic_name("a"), force=True)
        return actual

    monkeypatch.setattr(admin.service.topics, "names", then_deleted)
    actual = await shown(admin, OF_NAMESPACE, "?messageTTL=1")
    assert (actual["topics_total"], actual["from_records"]) == (1, 1)


@pytest.mark.parametrize(("most", "listed"), [(2, ["c", "b"]), (3, ["c", "b", "a"]), (4, None)])
async def test_only_the_topics_that_lose_most_are_listed_but_all_are_counted(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, most: int, listed: list[str] | None
) -> None:
    monkeypatch.setattr(effect, "TOPICS_LISTED_MAX", most)
    await admin.done("POST", NAMESPACE + "/retention", KEEPS_ALL)
    for number, local in enumerate("abc", 1):
        await filled(admin, local, number)
    await admin.topic("empty")
    query = "?retentionTimeInMinutes=0&retentionSizeInMB=0"
    actual = await shown(admin, OF_NAMESPACE, query)
    names = [name.rpartition("/")[2] for name in actual["topics"]]
    assert names == (listed or ["c", "b", "a"])
    assert (actual["topics_total"], actual["topics_affected"]) == (4, 3)
    assert actual["left_off"] == 3 - len(names)
    assert actual["deletes"]["ledgers"] == 3


async def test_a_partitioned_topics_effect_is_the_sum_over_its_partitions(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/p/partitions", 3)
    await admin.done("PUT", "~/persistent/t1/n1/p/subscription/s", EARLIEST)
    await admin.done("PUT", "~/persistent/t1/n1/p-partition-1/subscription/t", EARLIEST)
    for number in range(3):
        await admin.publish([b"x"] * (number + 1), f"p-partition-{number}")
    await admin.topic("another")
    path = OF_TOPIC.format("p")
    actual = await shown(admin, path, f"?backlogQuotaSize=1&backlogQuotaPolicy={EVICT}")
    assert (actual["topics_total"], actual["from_records"]) == (3, 0)
    assert actual["evicts"] == {"s": 6, "t": 2}
    assert (actual["blocks_producers"], actual["estimated"]) == (False, False)
    actual = await shown(admin, path, f"?backlogQuotaSize=1&backlogQuotaPolicy={REFUSE}")
    assert (actual["evicts"], actual["blocks_producers"]) == ({}, True)
    # From records alone, a backlog is an estimate.
    await admin.service.topics.unload(topic_name("p-partition-2"))
    actual = await shown(admin, path, f"?backlogQuotaSize=1&backlogQuotaPolicy={REFUSE}")
    assert (actual["from_records"], actual["estimated"]) == (1, True)
    for missing in (OF_TOPIC.format("none"), "~/magnetar/persistent/t1/no/p/effect"):
        assert (await admin.call("GET", missing)).status_code == 404


class JumpingClock(SystemClock):
    """A wall clock with an offset."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.mark.parametrize("served", [True, False])
async def test_a_wall_clock_that_is_ahead_makes_no_message_older(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, served: bool
) -> None:
    clock = JumpingClock()
    monkeypatch.setattr(admin.service.clock, "_clock", clock)
    await admin.done("POST", NAMESPACE + "/retention", KEEPS_ALL)
    await filled(admin, "a")
    if not served:
        await admin.service.topics.unload(topic_name("a"))
    clock.ahead_ms = 7_200_000
    query = "?retentionTimeInMinutes={}&retentionSizeInMB=-1"
    actual = await shown(admin, OF_NAMESPACE, query.format(60))
    assert (actual["topics_total"], actual["deletes"]["ledgers"]) == (1, 0)
