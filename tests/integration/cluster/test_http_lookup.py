"""Look-ups over HTTP: the same answers as over the binary protocol, with redirects."""

from collections.abc import AsyncIterator

import httpx
import pytest
from tests.support.brokers import TOPIC, Cluster, Node, bundle_of, running_cluster

from magnetar.admin.app import create_app
from magnetar.broker.ownership.records import Urls

LOOKUP = "/lookup/v2/topic/persistent/public/default/"
LISTENERS = {"public": Urls("pulsar://example.test:6650", "http://example.test:8080")}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running_cluster(1) as cluster:
        await cluster.broker(listeners=LISTENERS)
        await cluster.everybody_sees(2)
        yield cluster


async def get(node: Node, path: str, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(create_app(node.service))
    async with httpx.AsyncClient(transport=transport, base_url=node.service.http_url) as http:
        return await http.get(path, headers=headers)


async def test_who_is_asked_names_the_owner_or_sends_on_to_who_will_be(cluster: Cluster) -> None:
    first, second = cluster.nodes
    assert (await get(first, LOOKUP + "t")).json() == {
        "brokerUrl": first.url,
        "httpUrl": first.service.http_url,
        "nativeUrl": first.url,
        "brokerUrlSsl": "",
    }
    # Another bundle: the other broker has fewer, and is to take it.
    name = next(
        f"t%26{index}"
        for index in range(100)
        if bundle_of(first, f"{TOPIC}&{index}") != bundle_of(first)
    )
    answer = await get(first, LOOKUP + name)
    assert answer.status_code == 307
    location = f"{second.service.http_url}{LOOKUP}{name}?authoritative=true"
    assert answer.headers["location"] == location
    assert (await get(second, location)).json()["brokerUrl"] == second.url
    # Once it is owned, whoever is asked names the owner.
    assert (await get(first, LOOKUP + name)).json()["brokerUrl"] == second.url


async def test_listeners_have_their_own_addresses(cluster: Cluster) -> None:
    first, second = cluster.nodes
    await second.ownership.claims.acquire(bundle_of(second))
    for node in cluster.nodes:
        for answer in (
            await get(node, LOOKUP + "t?listenerName=public"),
            await get(node, LOOKUP + "t", **{"X-Pulsar-ListenerName": "public"}),
        ):
            assert answer.json()["brokerUrl"] == "pulsar://example.test:6650"
            assert answer.json()["httpUrl"] == "http://example.test:8080"
        refused = await get(node, LOOKUP + "t?listenerName=nosuch")
        assert refused.status_code == 500
        assert "the broker do not have nosuch listener" in refused.text
    assert first.ownership.owned() == {}


async def test_a_broker_that_is_sent_the_client_takes_the_topic_and_its_listener_is_kept(
    cluster: Cluster,
) -> None:
    first, _ = cluster.nodes
    assert (await get(first, LOOKUP + "t")).status_code == 200
    name = next(
        f"t{index}"
        for index in range(100)
        if bundle_of(first, f"{TOPIC}{index}") != bundle_of(first)
    )
    for asked in (
        await get(first, LOOKUP + name + "?listenerName=public"),
        await get(first, LOOKUP + name, **{"X-Pulsar-ListenerName": "public"}),
    ):
        assert asked.status_code == 307
        location = f"http://example.test:8080{LOOKUP}{name}?authoritative=true&listenerName=public"
        assert asked.headers["location"] == location
    # Said to be its own, it is not sent on once more.
    found = await get(first, LOOKUP + name + "?authoritative=true")
    assert found.json()["brokerUrl"] == first.url
