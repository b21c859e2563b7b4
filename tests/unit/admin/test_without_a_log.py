"""Non-persistent topics: requests that need a log are refused, without loading the topic."""

import pytest

from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.nonpersistent import NonPersistentSubscription
from magnetar.broker.subscription.spec import ConsumerSpec
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.names import parse_topic

from .support import NO_BODY, Admin, Peer

TOPIC = "~/non-persistent/t1/n1/np"
FULL = "non-persistent://t1/n1/np"
FIRST = {"ledgerId": -1, "entryId": -1}
NOT = "on a non-persistent topic is not allowed"
TERMINATION = "Termination of a non-persistent topic is not allowed"
NO_PLACE = f"{FULL} is a non-persistent topic: its subscriptions have no position"


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        ("PUT", "/subscription/s", NO_BODY, f"Create subscription {NOT}"),
        ("PUT", "/subscription/s", FIRST, f"Create subscription {NOT}"),
        ("POST", "/subscription/s/skip_all", NO_BODY, NO_PLACE),
        ("POST", "/subscription/s/resetcursor", FIRST, NO_PLACE),
        ("POST", "/subscription/s/resetcursor/1", NO_BODY, NO_PLACE),
        ("POST", "/subscription/s/expireMessages/1", NO_BODY, NO_PLACE),
        ("POST", "/subscription/s/expireMessages", FIRST, NO_PLACE),
        ("POST", "/subscription/s/analyzeBacklog", NO_BODY, f"Analyze backlog {NOT}"),
        ("GET", "/subscription/s/position/1", NO_BODY, f"Peek messages {NOT}"),
        ("PUT", "/backlogSize", FIRST, f"Get backlog size {NOT}"),
        ("GET", "/examinemessage", NO_BODY, f"Examine messages {NOT}"),
        ("GET", "/messageid/1", NO_BODY, f"Get message id by timestamp {NOT}"),
        ("GET", "/ledger/1/entry/1", NO_BODY, f"Get message by id {NOT}"),
        ("GET", "/lastMessageId", NO_BODY, f"GetLastMessageId {NOT}"),
        ("POST", "/terminate", NO_BODY, f"Termination {NOT}"),
        ("DELETE", "/truncate", NO_BODY, "unsupport truncate"),
        ("PUT", "/properties", {"a": "1"}, "A non-persistent topic keeps no properties"),
        ("GET", "/internal-info", NO_BODY, "A non-persistent topic is not recorded"),
        ("PUT", "/offload", FIRST, f"Offload {NOT}"),
        ("GET", "/offload", NO_BODY, f"Offload {NOT}"),
    ],
)
async def test_requests_that_need_a_log_are_refused(
    admin: Admin, method: str, path: str, body: object, reason: str
) -> None:
    await admin.done("PUT", TOPIC)
    answer = await admin.call(method, TOPIC + path, body)
    assert (answer.status_code, answer.json()["reason"]) == (405, reason)


async def test_a_non_persistent_topic_has_no_properties(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    assert (await admin.done("GET", TOPIC + "/properties")).json() == {}
    await admin.done("DELETE", TOPIC + "/properties?key=a")
    actual = (await admin.done("GET", TOPIC + "/stats?getEarliestTimeInBacklog=true")).json()
    assert actual["earliestMsgPublishTimeInBacklogs"] == 0
    effect = await admin.call("GET", TOPIC.replace("~", "~/magnetar") + "/effect")
    assert effect.status_code == 405


async def test_a_non_persistent_topic_without_policies_shows_none(
    admin: Admin,
) -> None:
    path = TOPIC.replace("~", "~/magnetar") + "/policies"
    assert (await admin.done("GET", path)).json() == {}


async def test_a_refusal_opens_no_topic(admin: Admin) -> None:
    assert (await admin.call("PUT", TOPIC + "/subscription/s")).status_code == 405
    assert len(admin.service.topics) == 0


async def test_partitions_that_are_added_are_opened_by_their_clients(admin: Admin) -> None:
    path = "~/non-persistent/t1/n1/p/partitions"
    await admin.done("PUT", path, 1)
    await admin.done("POST", path, 3)
    assert (await admin.done("GET", path)).json()["partitions"] == 3
    assert len(admin.service.topics) == 0


async def test_non_persistent_partitions_cannot_be_terminated(admin: Admin) -> None:
    await admin.done("PUT", "~/non-persistent/t1/n1/p/partitions", 2)
    answer = await admin.call("POST", "~/non-persistent/t1/n1/p/terminate/partitions")
    assert (answer.status_code, answer.json()["reason"]) == (405, TERMINATION)


async def test_a_non_persistent_subscription_has_no_properties(admin: Admin) -> None:
    topic = await admin.service.topics.get_or_open(parse_topic(FULL), create=True)
    spec = ConsumerSpec(7, "c")
    await topic.subscribe(SubscribeRequest("s", spec), Consumer(spec, Peer(), admin.service.clock))
    path = TOPIC + "/subscription/s/properties"
    assert (await admin.done("GET", path)).json() == {}
    answer = await admin.call("PUT", path, {"a": "1"})
    text = "A subscription of a non-persistent topic keeps no properties"
    assert (answer.status_code, answer.json()["reason"]) == (405, text)


async def test_a_topics_drop_rate_is_the_sum_of_its_subscriptions(admin: Admin) -> None:
    """A message for a consumer without permits is lost; only this rate shows it."""
    topic = await admin.service.topics.get_or_open(parse_topic(FULL), create=True)
    for name, rate in (("s", 2.0), ("t", 3.0)):
        spec = ConsumerSpec(7, "c")
        consumer = Consumer(spec, Peer(), admin.service.clock)
        subscription = await topic.subscribe(SubscribeRequest(name, spec), consumer)
        assert isinstance(subscription, NonPersistentSubscription)
        subscription.drop_rate = rate
    actual = (await admin.done("GET", TOPIC + "/stats")).json()
    assert actual["msgDropRate"] == 5.0
