"""Requests of a broker to its peers: concurrent, with a deletion mark, retried, and bounded."""

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.unit.ledger.cluster import virtual

from magnetar.admin.cluster import peers as peers_module
from magnetar.admin.cluster import sender as sending
from magnetar.admin.cluster.answers import Refused
from magnetar.admin.cluster.deletion import MARK_LOST, delete_topics, mark_of
from magnetar.admin.cluster.partitions import copy_subscriptions, stats_of
from magnetar.admin.cluster.peers import RETRY_S, TRIES_MAX, Peers, gather_answers
from magnetar.admin.cluster.routing import Peer
from magnetar.admin.cluster.sender import (
    LOCAL_HEADER,
    UNDER_HEADER,
    PeerAnswer,
    PeerRequest,
    Sender,
)
from magnetar.core.errors import MetadataError, ServiceNotReady
from magnetar.core.names import parse_topic
from magnetar.documents.stats import TopicSummary
from magnetar.metadata.store import BadRevision, Check

from .test_cluster_answers import DONE, TOPIC, request_of
from .test_peers import OWNER, Owner


async def test_all_requests_end_before_the_first_error_is_raised() -> None:
    ended: list[str] = []
    late = asyncio.Event()

    async def fails(name: str, error: Exception) -> PeerAnswer:
        ended.append(name)
        raise error

    async def answers(name: str) -> PeerAnswer:
        await late.wait()
        ended.append(name)
        return DONE

    requests: list[Awaitable[PeerAnswer]] = [
        answers("a"), fails("b", ServiceNotReady("first")), answers("c"), fails("d", ValueError()),
    ]  # fmt: skip
    everything = asyncio.ensure_future(gather_answers(requests))
    for _ in range(50):  # an error that were raised at once would arrive within these turns
        await asyncio.sleep(0)
    assert not everything.done()
    late.set()
    with pytest.raises(ServiceNotReady, match="first"):
        await everything
    assert sorted(ended) == ["a", "b", "c", "d"]
    assert await gather_answers([answers("x"), answers("y")]) == [DONE, DONE]
    with pytest.raises(ValueError, match="a mistake"):
        await gather_answers([answers("x"), fails("y", ValueError("a mistake"))])


def test_a_request_without_an_answer_ends_at_the_deadline() -> None:
    async def scenario() -> None:
        async def never() -> PeerAnswer:
            await asyncio.Event().wait()
            return DONE

        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            await gather_answers([never()])
        assert loop.time() - began == pytest.approx(peers_module.FAN_OUT_TIMEOUT_S)

    virtual(scenario())


class Scripted:
    """An application that gives the scripted answers and records the requests."""

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
            response = Response(None if status == 204 else msgspec.json.encode(value), status)
            await response(scope, receive, send)

        return app


@pytest.mark.parametrize("status", [400, 401, 409, 500])
async def test_refused_stats_do_not_count_as_a_topic_without_clients(status: int) -> None:
    script = Scripted((status, {"reason": "no", "publishers": [], "subscriptions": {}}))
    peers = Peers(Owner(), script.app())
    with pytest.raises(Refused, match="no") as failure:
        await stats_of(peers, TOPIC)
    assert failure.value.http_status == status
    assert script.requests == [("GET", "/admin/v2/persistent/t1/n1/p/stats", "authoritative=true")]
    await peers.close()


async def test_a_missing_topic_has_no_stats() -> None:
    stats = {"publishers": [], "subscriptions": {}, "msgRateIn": 0.5}
    peers = Peers(Owner(), Scripted((404, {"reason": "no"}), (200, stats)).app())
    assert await stats_of(peers, TOPIC) is None
    assert await stats_of(peers, TOPIC) == TopicSummary((), {})
    await peers.close()


@pytest.mark.parametrize("stats", [{}, {"publishers": []}, {"subscriptions": {}}, []])
async def test_incomplete_stats_do_not_count_as_a_topic_without_clients(stats: object) -> None:
    peers = Peers(Owner(), Scripted((200, stats)).app())
    with pytest.raises(msgspec.ValidationError):
        await stats_of(peers, TOPIC)
    await peers.close()


async def test_new_partitions_get_every_durable_subscription_of_the_first_at_the_earliest() -> None:
    stats: dict[str, Any] = {
        "publishers": [],
        "subscriptions": {
            "a/1": {"isDurable": True, "subscriptionProperties": {"team": "x"}},
            "b": {"isDurable": True},
            "c": {},
            "d": {"isDurable": True, "subscriptionProperties": None},
            "reader": {"isDurable": False},
        },
    }
    script = Scripted((200, stats), *[(409, {"reason": "there"}), (204, None)] * 4)
    peers = Peers(Owner(), script.app())
    await copy_subscriptions(peers, TOPIC, 2, 4)
    assert script.requests[0][:2] == ("GET", "/admin/v2/persistent/t1/n1/p-partition-0/stats")
    assert sorted(path for method, path, _ in script.requests[1:] if method == "PUT") == [
        f"/admin/v2/persistent/t1/n1/p-partition-{number}/subscription/{name}"
        for number in (2, 3)
        for name in ("a%2F1", "b", "c", "d")
    ]
    bodies = {path: body for (_, path, _), body in zip(script.requests, script.bodies, strict=True)}
    for number in (2, 3):
        for name, properties in (("a%2F1", {"team": "x"}), ("b", {}), ("c", {}), ("d", {})):
            path = f"/admin/v2/persistent/t1/n1/p-partition-{number}/subscription/{name}"
            assert bodies[path] == {"ledgerId": -1, "entryId": -1, "properties": properties}
    await peers.close()


@pytest.mark.parametrize("status", [404, 412, 500])
async def test_subscriptions_that_cannot_be_copied_are_an_error(status: int) -> None:
    stats: dict[str, Any] = {"publishers": [], "subscriptions": {"s": {}}}
    script = Scripted((200, stats), (204, None), (status, {"reason": "broken"}))
    peers = Peers(Owner(), script.app())
    with pytest.raises(Refused, match="broken"):
        await copy_subscriptions(peers, TOPIC, 1, 3)
    await peers.close()
    nothing = Peers(Owner(), Scripted((404, None)).app())
    await copy_subscriptions(nothing, TOPIC, 1, 3)
    await nothing.close()
    volatile = Peers(Owner(), Scripted().app())
    await copy_subscriptions(volatile, parse_topic("non-persistent://t1/n1/p"), 1, 3)


MARK = Check("/namespaces/t1/n 1", 7)


async def test_topics_are_deleted_by_force_with_the_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.admin.cluster.deletion.TOPICS_AT_ONCE", 2)
    names = [TOPIC.partition(index) for index in range(5)]
    script = Scripted((204, None), (404, None), (204, None), (204, None), (404, None))
    peers = Peers(Owner(), script.app())
    await delete_topics(peers, names, MARK)
    assert [path for _, path, _ in script.requests] == [
        f"/admin/v2/persistent/t1/n1/p-partition-{index}" for index in range(5)
    ]
    assert {query for _, _, query in script.requests} == {"force=true&authoritative=true"}
    for headers in script.headers:
        assert mark_of(request_of("/", x_magnetar_under=headers[UNDER_HEADER])) == MARK
    await peers.close()


@pytest.mark.parametrize(("status", "error"), [(MARK_LOST, BadRevision), (500, Refused)])
async def test_a_deletion_ends_if_its_mark_is_invalid_or_a_topic_cannot_be_deleted(
    monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    monkeypatch.setattr("magnetar.admin.cluster.deletion.TOPICS_AT_ONCE", 2)
    script = Scripted((204, None), (status, {"reason": "no"}), (204, None))
    peers = Peers(Owner(), script.app())
    with pytest.raises(error) as failure:
        await delete_topics(peers, [TOPIC.partition(index) for index in range(3)], MARK)
    assert len(script.requests) == 2, "nothing more is deleted"
    if isinstance(failure.value, BadRevision):
        assert (failure.value.key, failure.value.expected) == (MARK.key, MARK.expected)
    await peers.close()


def test_pauses_between_attempts_double() -> None:
    async def scenario() -> None:
        times: list[float] = []

        class Away(Owner):
            async def owner(self, name: object, *, claim: bool) -> Peer:
                times.append(asyncio.get_running_loop().time())
                raise ServiceNotReady("no owner")

        with pytest.raises(ServiceNotReady):
            await Peers(Away(), Scripted().app()).request_topic(TOPIC, "GET")
        bounds = [RETRY_S * 2**failures for failures in range(TRIES_MAX - 1)]
        pauses = [after - before for before, after in pairwise(times)]
        for pause, bound in zip(pauses, bounds, strict=True):
            assert bound * 0.5 <= pause <= bound + 1e-6

    virtual(scenario())


async def test_the_number_of_running_requests_is_bounded() -> None:
    under_way, most, go = 0, 0, asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await go.wait()
        under_way -= 1
        await Response(None, 204)(scope, receive, send)

    peers = Peers(Owner(), app)
    names = [TOPIC.partition(index) for index in range(sending.AT_ONCE_MAX * 2)]
    requests = [peers.request_topic(name, "GET") for name in names]
    gathered = asyncio.ensure_future(gather_answers(requests))
    while under_way < sending.AT_ONCE_MAX:  # noqa: ASYNC110 - no event signals it
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    go.set()
    answers = await gathered
    assert [answer.subject for answer in answers] == [str(name) for name in names]
    assert most == sending.AT_ONCE_MAX
    await peers.close()


@pytest.mark.parametrize("over", [0, 1])
async def test_a_too_large_answer_is_refused(monkeypatch: pytest.MonkeyPatch, over: int) -> None:
    monkeypatch.setattr(sending, "ANSWER_BYTES_MAX", 10)
    sender = Sender(Scripted((200, "x" * (8 + over))).app())
    sent = PeerRequest("GET", "/a", "b=1")
    if over:
        with pytest.raises(MetadataError, match="too large"):
            await sender.send(OWNER, sent)
    else:
        assert len((await sender.send(OWNER, sent)).body) == 10
    await sender.close()


def test_the_wait_for_a_slot_is_no_part_of_a_requests_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the last requests of a large fan-out fail although every peer answers in time."""
    monkeypatch.setattr(sending, "AT_ONCE_MAX", 1)

    async def scenario() -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.sleep(sending.REQUEST_TIMEOUT_S * 0.6)
            await Response(None, 204)(scope, receive, send)

        sender = Sender(app)
        sent = [sender.send(OWNER, PeerRequest("GET", "/a")) for _ in range(2)]
        assert [answer.status for answer in await asyncio.gather(*sent)] == [204, 204]
        await sender.close()

    virtual(scenario())


async def test_a_repeated_request_keeps_its_body_and_the_type_of_it() -> None:
    body = b'{"ledgerId":3}'

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    path = "/admin/v2/persistent/t1/n1/p/subscription/s"
    asked = request_of(path, "replicated=true", content_type="application/json", cookie="c")
    script = Scripted((204, None), (204, None))
    peers = Peers(Owner(), script.app())
    names = [TOPIC.partition(index) for index in range(2)]
    await peers.repeat_for_topics(Request(asked.scope, receive), names)
    assert script.requests == [
        (
            "PUT",
            f"/admin/v2/persistent/t1/n1/p-partition-{index}/subscription/s",
            "replicated=true&authoritative=true",
        )
        for index in range(2)
    ]
    assert script.bodies == [{"ledgerId": 3}] * 2
    for headers in script.headers:
        assert headers["content-type"] == "application/json"
        assert "cookie" not in headers
    await peers.close()


async def test_the_times_of_a_request_to_another_broker_are_bounded() -> None:
    """A broker whose machine is gone refuses no connection: the client must give up itself."""
    sender = Sender(Scripted().app())
    timeout = sender._client(local=False).timeout
    assert timeout.connect == sending.CONNECT_TIMEOUT_S
    assert {timeout.read, timeout.write, timeout.pool} == {sending.REQUEST_TIMEOUT_S}
    await sender.close()


def test_a_peer_that_never_answers_fails_at_the_deadline() -> None:
    async def scenario() -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.Event().wait()

        loop = asyncio.get_running_loop()
        began, sender = loop.time(), Sender(app)
        with pytest.raises(ServiceNotReady, match="did not answer GET /a"):
            await sender.send(OWNER, PeerRequest("GET", "/a"))
        assert loop.time() - began == pytest.approx(sending.REQUEST_TIMEOUT_S)
        await sender.close()

    virtual(scenario())


async def test_only_other_brokers_get_a_request_and_only_for_their_own_data() -> None:
    other = Peer("other:8080", "http://other:8080", local=False)

    class Two(Owner):
        def brokers(self) -> Sequence[Peer]:
            return [OWNER, other]

    script = Scripted((200, ["a"]))
    peers = Peers(Two(), Scripted().app())
    peers._sender._remote = httpx.AsyncClient(transport=httpx.ASGITransport(script.app()))
    request = request_of("/", authorization="Bearer x", cookie="c")
    (answer,) = await peers.request_brokers(request, "/admin/v2/x", "a=1")
    assert (answer.status, answer.body) == (200, b'["a"]')
    assert script.requests == [("GET", "/admin/v2/x", "a=1&authoritative=true")]
    (headers,) = script.headers
    assert headers["host"] == "other:8080"
    assert headers[LOCAL_HEADER] == "1"
    assert not {"authorization", "cookie"} & set(headers), "a client's credentials are its own"
    remote = peers._sender._remote
    await peers.close()
    assert remote.is_closed


async def test_a_client_is_closed_with_its_sender_and_opened_again_on_demand() -> None:
    sender = Sender(Scripted((204, None), (204, None)).app())
    for _ in range(2):
        assert (await sender.send(OWNER, PeerRequest("GET", "/a"))).succeeded
        local = sender._local
        assert local is not None
        await sender.close()
        assert local.is_closed
    await sender.close()
