"""Requests of a broker to its peers: many at once, under a mark, again and again, and bounded."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import httpx
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.unit.ledger.cluster import virtual

from magnetar.admin.cluster import peers as peers_module
from magnetar.admin.cluster import sending
from magnetar.admin.cluster.deletion import MARK_LOST, delete_topics, mark_of
from magnetar.admin.cluster.partitions import Refused, copy_subscriptions, stats_of
from magnetar.admin.cluster.peers import RETRY_S, TRIES_MAX, Peers, together
from magnetar.admin.cluster.routing import Peer
from magnetar.admin.cluster.sending import LOCAL_HEADER, UNDER_HEADER, Answer, Sender, Sent
from magnetar.core.errors import MetadataError, ServiceNotReady
from magnetar.core.names import parse_topic
from magnetar.metadata.store import BadRevision, Check

from .test_cluster_answers import DONE, TOPIC, request_of
from .test_peers import OWNER, Owner

# -- many at once


async def test_all_are_asked_to_the_end_before_the_first_error_is_raised() -> None:
    ended: list[str] = []
    late = asyncio.Event()

    async def fails(name: str, error: Exception) -> Answer:
        ended.append(name)
        raise error

    async def answers(name: str) -> Answer:
        await late.wait()
        ended.append(name)
        return DONE

    asking: list[Awaitable[Answer]] = [
        answers("a"), fails("b", ServiceNotReady("first")), answers("c"), fails("d", ValueError()),
    ]  # fmt: skip
    everything = asyncio.ensure_future(together(asking))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not everything.done()
    late.set()
    with pytest.raises(ServiceNotReady, match="first"):
        await everything
    assert sorted(ended) == ["a", "b", "c", "d"]
    assert await together([answers("x"), answers("y")]) == [DONE, DONE]
    with pytest.raises(ValueError, match="a mistake"):
        await together([answers("x"), fails("y", ValueError("a mistake"))])


def test_what_is_never_answered_is_waited_for_no_longer_than_the_bound() -> None:
    async def scenario() -> None:
        async def never() -> Answer:
            await asyncio.Event().wait()
            return DONE

        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            await together([never()])
        assert loop.time() - began == pytest.approx(peers_module.FAN_OUT_TIMEOUT_S)

    virtual(scenario())


class Asked:
    """An application that answers as its table says and notes what it is asked."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[Any] = []

    def app(self) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            body = await request.body()
            path = scope["raw_path"].decode()
            self.requests.append((request.method, path, request.url.query))
            self.headers.append(dict(request.headers))
            self.bodies.append(msgspec.json.decode(body) if body else None)
            status, value = self.answers.pop(0)
            found = Response(None if status == 204 else msgspec.json.encode(value), status)
            await found(scope, receive, send)

        return app


@pytest.mark.parametrize("status", [400, 401, 409, 500])
async def test_stats_that_are_refused_are_no_stats(status: int) -> None:
    """An answer that says nothing of clients must not count as one without any."""
    asked = Asked((status, {"reason": "no", "publishers": [], "subscriptions": {}}))
    some = Peers(Owner(), asked.app())
    with pytest.raises(Refused, match="no") as failure:
        await stats_of(some, TOPIC, query="x=1")
    assert failure.value.http_status == status
    assert asked.requests == [
        ("GET", "/admin/v2/persistent/t1/n1/p/stats", "x=1&authoritative=true")
    ]
    await some.close()


async def test_a_topic_that_is_not_there_has_no_stats() -> None:
    some = Peers(Owner(), Asked((404, {"reason": "no"}), (200, {"a": 1})).app())
    assert await stats_of(some, TOPIC) == {}
    assert await stats_of(some, TOPIC) == {"a": 1}
    await some.close()


async def test_new_partitions_get_every_durable_subscription_of_the_first_from_the_start() -> None:
    stats: dict[str, Any] = {
        "subscriptions": {
            "a/1": {"durable": True, "subscriptionProperties": {"team": "x"}},
            "b": {"isDurable": True},
            "c": {},
            "d": {"durable": True, "subscriptionProperties": None},
            "reader": {"isDurable": False, "durable": True},
            "other": {"durable": False},
        }
    }
    asked = Asked((200, stats), *[(409, {"reason": "there"}), (204, None)] * 4)
    some = Peers(Owner(), asked.app())
    await copy_subscriptions(some, TOPIC, 2, 4)
    assert asked.requests[0][:2] == ("GET", "/admin/v2/persistent/t1/n1/p-partition-0/stats")
    assert sorted(path for method, path, _ in asked.requests[1:] if method == "PUT") == [
        f"/admin/v2/persistent/t1/n1/p-partition-{number}/subscription/{name}"
        for number in (2, 3)
        for name in ("a%2F1", "b", "c", "d")
    ]
    made = {path: body for (_, path, _), body in zip(asked.requests, asked.bodies, strict=True)}
    for number in (2, 3):
        for name, properties in (("a%2F1", {"team": "x"}), ("b", {}), ("c", {}), ("d", {})):
            path = f"/admin/v2/persistent/t1/n1/p-partition-{number}/subscription/{name}"
            assert made[path] == {"ledgerId": -1, "entryId": -1, "properties": properties}
    await some.close()


async def test_subscriptions_that_cannot_be_copied_are_an_error() -> None:
    stats: dict[str, Any] = {"subscriptions": {"s": {}}}
    some = Peers(Owner(), Asked((200, stats), (204, None), (500, {"reason": "broken"})).app())
    with pytest.raises(Refused, match="broken"):
        await copy_subscriptions(some, TOPIC, 1, 3)
    await some.close()
    nothing = Peers(Owner(), Asked((404, None)).app())
    await copy_subscriptions(nothing, TOPIC, 1, 3)
    await nothing.close()
    volatile = Peers(Owner(), Asked().app())
    await copy_subscriptions(volatile, parse_topic("non-persistent://t1/n1/p"), 1, 3)


# -- deletions under a mark


MARK = Check("/namespaces/t1/n 1", 7)


async def test_topics_are_deleted_by_force_and_under_the_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.admin.cluster.deletion.TOPICS_AT_ONCE", 2)
    names = [TOPIC.partition(index) for index in range(5)]
    asked = Asked((204, None), (404, None), (204, None), (204, None), (404, None))
    some = Peers(Owner(), asked.app())
    await delete_topics(some, names, MARK)
    assert [path for _, path, _ in asked.requests] == [
        f"/admin/v2/persistent/t1/n1/p-partition-{index}" for index in range(5)
    ]
    assert {query for _, _, query in asked.requests} == {"force=true&authoritative=true"}
    for headers in asked.headers:
        assert mark_of(request_of("/", x_magnetar_under=headers[UNDER_HEADER])) == MARK
    await some.close()


@pytest.mark.parametrize(("status", "error"), [(MARK_LOST, BadRevision), (500, Refused)])
async def test_a_deletion_ends_where_its_mark_is_lost_or_a_topic_cannot_be_deleted(
    monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    monkeypatch.setattr("magnetar.admin.cluster.deletion.TOPICS_AT_ONCE", 2)
    asked = Asked((204, None), (status, {"reason": "no"}), (204, None))
    some = Peers(Owner(), asked.app())
    with pytest.raises(error) as failure:
        await delete_topics(some, [TOPIC.partition(index) for index in range(3)], MARK)
    assert len(asked.requests) == 2, "nothing more is deleted"
    if isinstance(failure.value, BadRevision):
        assert (failure.value.key, failure.value.expected) == (MARK.key, MARK.expected)
    await some.close()


# -- waiting and sending


def test_a_peer_that_is_away_is_given_longer_each_time() -> None:
    async def scenario() -> None:
        times: list[float] = []

        class Away(Owner):
            async def owner(self, name: object, *, claim: bool) -> Peer:
                times.append(asyncio.get_running_loop().time())
                raise ServiceNotReady("nobody has it now")

        with pytest.raises(ServiceNotReady):
            await Peers(Away(), Asked().app()).ask_topic(TOPIC, "GET")
        waits = [RETRY_S * factor for factor in range(1, TRIES_MAX)]
        assert times == pytest.approx([times[0] + sum(waits[:n]) for n in range(TRIES_MAX)])

    virtual(scenario())


async def test_no_more_requests_are_under_way_than_the_bound() -> None:
    under_way, most, go = 0, 0, asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await go.wait()
        under_way -= 1
        await Response(None, 204)(scope, receive, send)

    some = Peers(Owner(), app)
    names = [TOPIC.partition(index) for index in range(sending.AT_ONCE_MAX * 2)]
    asking = asyncio.ensure_future(together([some.ask_topic(name, "GET") for name in names]))
    while under_way < sending.AT_ONCE_MAX:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    go.set()
    answers = await asking
    assert [each.about for each in answers] == [str(name) for name in names]
    assert most == sending.AT_ONCE_MAX
    await some.close()


@pytest.mark.parametrize("over", [0, 1])
async def test_an_answer_is_no_larger_than_the_bound(
    monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    monkeypatch.setattr(sending, "ANSWER_BYTES_MAX", 10)
    sender = Sender(Asked((200, "x" * (8 + over))).app())
    sent = Sent("GET", "/a", "b=1")
    if over:
        with pytest.raises(MetadataError, match="too large"):
            await sender.send(OWNER, sent)
    else:
        assert len((await sender.send(OWNER, sent)).body) == 10
    await sender.close()


def test_a_peer_that_never_answers_is_waited_for_no_longer_than_the_bound() -> None:
    async def scenario() -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.Event().wait()

        loop = asyncio.get_running_loop()
        began, sender = loop.time(), Sender(app)
        with pytest.raises(ServiceNotReady, match="did not answer GET /a"):
            await sender.send(OWNER, Sent("GET", "/a"))
        assert loop.time() - began == pytest.approx(sending.REQUEST_TIMEOUT_S)
        await sender.close()

    virtual(scenario())


async def test_only_the_other_brokers_are_asked_and_for_what_they_hold_themselves() -> None:
    other = Peer("other:8080", "http://other:8080", here=False)

    class Two(Owner):
        def brokers(self) -> Sequence[Peer]:
            return [OWNER, other]

    asked = Asked((200, ["a"]))
    some = Peers(Two(), Asked().app())
    some._sender._remote = httpx.AsyncClient(transport=httpx.ASGITransport(asked.app()))
    request = request_of("/", authorization="Bearer x", cookie="c")
    (answer,) = await some.ask_all(request, "/admin/v2/x", "a=1")
    assert (answer.status, answer.body) == (200, b'["a"]')
    assert asked.requests == [("GET", "/admin/v2/x", "a=1&authoritative=true")]
    (headers,) = asked.headers
    assert headers["host"] == "other:8080"
    assert (headers["authorization"], headers[LOCAL_HEADER]) == ("Bearer x", "1")
    assert "cookie" not in headers
    remote = some._sender._remote
    await some.close()
    assert remote.is_closed


async def test_a_client_is_closed_with_its_sender_and_made_again_when_it_is_needed() -> None:
    sender = Sender(Asked((204, None), (204, None)).app())
    for _ in range(2):
        assert (await sender.send(OWNER, Sent("GET", "/a"))).good
        local = sender._local
        assert local is not None
        await sender.close()
        assert local.is_closed
    await sender.close()
