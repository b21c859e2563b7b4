"""A broker asks the owner of a topic again while that may only be for a moment."""

from collections.abc import Sequence

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from magnetar.admin.cluster import peers
from magnetar.admin.cluster.peers import TRIES_MAX, Peers
from magnetar.admin.cluster.routing import Peer
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName, parse_topic

TOPIC = parse_topic("persistent://t1/n1/a b")
OWNER = Peer("127.0.0.1:8080", "http://127.0.0.1:8080", here=True)


class Owner:
    """Serves everything, after it could not be told for a while."""

    def __init__(self, away: int = 0) -> None:
        self.away = away

    async def owner(self, name: TopicName, *, claim: bool) -> Peer:
        assert not claim, "a broker that asks leaves it to the owner to claim"
        if self.away:
            self.away -= 1
            raise ServiceNotReady("nobody has it now")
        return OWNER

    async def bundle_owner(self, bundle: str, *, take: bool) -> Peer | None:
        return await self.owner(TOPIC, claim=False)

    def brokers(self) -> Sequence[Peer]:
        return [OWNER]

    async def bundle_of(self, name: TopicName) -> str:
        return "t1/n1/0x00000000_0xffffffff"

    def owned(self) -> Sequence[str]:
        return []


def answering(statuses: list[int], asked: list[str]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        asked.append(f"{request.method} {request.scope['raw_path'].decode()} {request.url.query}")
        status = statuses.pop(0)
        await Response(b"said" if status != 204 else b"", status)(scope, receive, send)

    return app


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "RETRY_S", 0.0)


@pytest.mark.parametrize("temporary", [307, 502, 503, 504])
async def test_what_is_away_for_a_moment_is_asked_again(temporary: int) -> None:
    asked: list[str] = []
    some = Peers(Owner(away=1), answering([temporary, temporary, 204], asked))
    answer = await some.ask_topic(TOPIC, "DELETE", "/subscription/s", query="force=true")
    assert (answer.status, answer.about) == (204, str(TOPIC))
    path = "DELETE /admin/v2/persistent/t1/n1/a%20b/subscription/s force=true&authoritative=true"
    assert asked == [path] * 3
    await some.close()


@pytest.mark.parametrize("final", [200, 204, 404, 405, 409, 412, 500])
async def test_an_answer_is_taken_at_once_and_nothing_is_asked_twice(final: int) -> None:
    asked: list[str] = []
    some = Peers(Owner(), answering([final], asked))
    assert (await some.ask_topic(TOPIC, "GET")).status == final
    assert len(asked) == 1
    await some.close()


async def test_what_stays_away_is_the_answer_in_the_end() -> None:
    asked: list[str] = []
    some = Peers(Owner(), answering([503] * TRIES_MAX, asked))
    assert (await some.ask_topic(TOPIC, "GET")).status == 503
    assert len(asked) == TRIES_MAX
    with pytest.raises(ServiceNotReady, match="nobody has it"):
        await Peers(Owner(away=TRIES_MAX), answering([], asked)).ask_topic(TOPIC, "GET")
    await some.close()
