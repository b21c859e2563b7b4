"""A subscription's own roles and the Prefix mode hold for every way to change a subscription.

Pulsar checks them where a path names a topic and a subscription, but lets any role that may consume
in the namespace clear, delete or expire all subscriptions of it.
"""

from collections.abc import AsyncIterator

import pytest
from tests.unit.admin.support import append, entry

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.names import parse_topic

from .rest import SUPER, TOPIC, Closed, closed_rest

OWNER = "owner"
BUNDLE = "0x00000000_0x40000000"
WAYS = [
    ("POST", "~/namespaces/t1/n1/clearBacklog/s"),
    ("POST", "~/namespaces/t1/n1/clearBacklog"),
    ("POST", "~/namespaces/t1/n1/unsubscribe/s"),
    ("POST", "~/persistent/t1/n1/a/all_subscription/expireMessages/1"),
    ("POST", "~/persistent/t1/n1/a/subscription/s/skip_all"),
    ("POST", "~/persistent/t1/n1/a/subscription/%73/skip_all"),
    ("POST", "~/persistent/t1/n1/a/subscription/s/expireMessages/1"),
    ("DELETE", "~/persistent/t1/n1/a/subscription/s"),
]


@pytest.fixture
async def closed() -> AsyncIterator[Closed]:
    async with closed_rest() as broker:
        topic = broker.service.topics.loaded(parse_topic(TOPIC))
        assert isinstance(topic, PersistentTopic)
        for number in range(3):
            await append(topic, entry(b"%d" % number))
        for role in (OWNER, "s"):
            await broker.done(SUPER, "POST", f"~/namespaces/t1/n1/permissions/{role}", ["consume"])
        yield broker


async def backlog(closed: Closed) -> int | None:
    """Returns the backlog of the subscription `s`, None if it was deleted."""
    response = await closed.call(SUPER, "GET", "~/persistent/t1/n1/a/stats")
    subscriptions = response.json()["subscriptions"]
    return subscriptions["s"]["msgBacklog"] if "s" in subscriptions else None


@pytest.mark.parametrize(("method", "path"), WAYS)
async def test_a_role_that_a_subscription_does_not_name_cannot_change_it(
    closed: Closed, method: str, path: str
) -> None:
    owned = "~/namespaces/t1/n1/permissions/subscription/s"
    await closed.done(SUPER, "POST", owned, [OWNER])
    before = await backlog(closed)
    response = await closed.call("cons", method, path)
    assert response.status_code in (401, 403), response.text
    assert await backlog(closed) == before
    assert (await closed.call(OWNER, method, path)).status_code == 204


@pytest.mark.parametrize(("method", "path"), WAYS)
async def test_the_prefix_mode_protects_the_subscriptions_of_other_roles(
    closed: Closed, method: str, path: str
) -> None:
    mode = "~/namespaces/t1/n1/subscriptionAuthMode"
    await closed.done(SUPER, "POST", mode, "Prefix")
    before = await backlog(closed)
    response = await closed.call("cons", method, path)
    assert response.status_code in (401, 403), response.text
    assert await backlog(closed) == before
    if "/s" in path.removeprefix("~/namespaces/t1/n1/").replace("%73", "s"):
        assert (await closed.call("s", method, path)).status_code == 204
    else:
        assert (await closed.call("s", method, path)).status_code in (401, 403)
        assert (await closed.call("ta", method, path)).status_code == 204
