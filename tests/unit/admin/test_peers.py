"""A broker retries requests to the owner of a topic while a failure may be temporary."""

from collections.abc import Sequence
from types import SimpleNamespace

import httpx
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from magnetar.admin.cluster import peers as peers_module
from magnetar.admin.cluster.namespaces import topic_names
from magnetar.admin.cluster.peers import TRIES_MAX, Peers
from magnetar.admin.cluster.routing import ClusterParts, Peer
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import NamespaceName, TopicName, parse_topic

from .support import Admin
from .test_cluster_answers import request_of

TOPIC = parse_topic("persistent://t1/n1/a b")
OWNER = Peer("127.0.0.1:8080", "http://127.0.0.1:8080", local=True)


class Owner:
    """A `Routing` with one broker, after `away` lookups without an owner."""

    def __init__(self, away: int = 0) -> None:
        self.away = away

    async def owner(self, name: TopicName, *, claim: bool) -> Peer:
        assert not claim, "only the owner claims"
        if self.away:
            self.away -= 1
            raise ServiceNotReady("no owner")
        return OWNER

    async def bundle_owner(self, bundle: str, *, claim: bool) -> Peer | None:
        return await self.owner(TOPIC, claim=False)

    def brokers(self) -> Sequence[Peer]:
        return [OWNER]

    async def bundle_of(self, name: TopicName) -> str:
        return "t1/n1/0x00000000_0xffffffff"

    def owned(self) -> Sequence[str]:
        return []


def answering(statuses: list[int], requests: list[str]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        requests.append(
            f"{request.method} {request.scope['raw_path'].decode()} {request.url.query}"
        )
        status = statuses.pop(0)
        await Response(b"said" if status != 204 else b"", status)(scope, receive, send)

    return app


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "RETRY_S", 0.0)


@pytest.mark.parametrize("temporary", [307, 502, 503, 504])
async def test_a_temporary_failure_is_retried(temporary: int) -> None:
    requests: list[str] = []
    peers = Peers(Owner(away=1), answering([temporary, temporary, 204], requests))
    answer = await peers.request_topic(TOPIC, "DELETE", "/subscription/s", query="force=true")
    assert (answer.status, answer.subject) == (204, str(TOPIC))
    path = "DELETE /admin/v2/persistent/t1/n1/a%20b/subscription/s force=true&authoritative=true"
    assert requests == [path] * 3
    await peers.close()


@pytest.mark.parametrize("final", [200, 204, 404, 405, 409, 412, 500])
async def test_any_other_answer_is_final(final: int) -> None:
    requests: list[str] = []
    peers = Peers(Owner(), answering([final], requests))
    assert (await peers.request_topic(TOPIC, "GET")).status == final
    assert len(requests) == 1
    await peers.close()


async def test_the_answer_about_a_bundle_names_it() -> None:
    requests: list[str] = []
    peers = Peers(Owner(), answering([204], requests))
    bundle = "t1/n1/0x00000000_0xffffffff"
    answer = await peers.request_bundle(bundle, "PUT", "/unload", claim=False, query="a=1")
    assert answer is not None
    assert (answer.status, answer.subject) == (204, bundle)
    assert requests == ["PUT /unload a=1&authoritative=true"]
    await peers.close()


async def test_a_bundle_that_nobody_can_claim_now_is_a_temporary_failure() -> None:
    """The bundle is being moved: the client asks again."""

    class Nobody(Owner):
        async def bundle_owner(self, bundle: str, *, claim: bool) -> Peer | None:
            return None

    async def handler(_: Request) -> Response:
        raise AssertionError("this broker does not own the bundle")

    peers, unowned = Peers(Nobody(), answering([], [])), Response(status_code=204)
    request = request_of("/")
    with pytest.raises(ServiceNotReady, match="has no owner now"):
        await peers.at_bundle_owner("t1/n1/0x00000000_0xffffffff", request, handler)
    kept = await peers.at_bundle_owner_if_any("t1/n1/0x0_0x1", request, handler, unowned)
    assert kept is unowned
    assert await peers.request_bundle("t1/n1/0x0_0x1", "PUT", "/unload", claim=False) is None
    await peers.close()


async def test_the_last_attempts_failure_is_the_answer() -> None:
    requests: list[str] = []
    peers = Peers(Owner(), answering([503] * TRIES_MAX, requests))
    assert (await peers.request_topic(TOPIC, "GET")).status == 503
    assert len(requests) == TRIES_MAX
    with pytest.raises(ServiceNotReady, match="no owner"):
        await Peers(Owner(away=TRIES_MAX), answering([], requests)).request_topic(TOPIC, "GET")
    await peers.close()


async def test_the_parts_of_a_cluster_are_closed_once() -> None:
    parts, closed = ClusterParts(Owner()), list[str]()

    async def close() -> None:
        closed.append("peers")

    parts.closing.append(close)
    await parts.close()
    await parts.close()
    assert closed == ["peers"]


@pytest.mark.parametrize("answer", [{"persistent://t1/n1/x": 1}, [1], "persistent://t1/n1/x"])
async def test_a_peers_answer_that_is_no_list_of_topics_is_not_taken_for_one(
    answer: object, admin: Admin
) -> None:
    """A deletion of the namespace would leave that broker's topics behind."""
    other = Peer("other:8080", "http://other:8080", local=False)

    class Two(Owner):
        def brokers(self) -> Sequence[Peer]:
            return [OWNER, other]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(msgspec.json.encode(answer))(scope, receive, send)

    peers = Peers(Two(), app)
    peers._sender._remote = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    request = request_of("/")
    state = SimpleNamespace(service=admin.service, peers=peers)
    request.scope["app"] = SimpleNamespace(state=state)
    with pytest.raises(msgspec.ValidationError):
        await topic_names(request, NamespaceName("t1", "n1"), "non-persistent")
    await peers.close()
