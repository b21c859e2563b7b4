"""Lists that a broker collects from all others."""

from collections.abc import Sequence
from types import SimpleNamespace

import httpx
import pytest

from magnetar.admin.cluster.answers import Refused
from magnetar.admin.cluster.namespaces import topic_names
from magnetar.admin.cluster.peers import Peers
from magnetar.admin.cluster.routing import Peer
from magnetar.core.names import NamespaceName

from .support import Admin
from .test_cluster_answers import request_of
from .test_cluster_sending import Scripted
from .test_peers import OWNER, Owner

NAMESPACE = NamespaceName("t1", "n1")


class Three(Owner):
    """A cluster of this broker and two others."""

    def brokers(self) -> Sequence[Peer]:
        others = [Peer(f"{name}:1", f"http://{name}:1", local=False) for name in ("a", "b")]
        return [OWNER, *others]


def names(*locals_: str) -> list[str]:
    return [f"non-persistent://t1/n1/{local}" for local in locals_]


@pytest.mark.parametrize("refused", [False, True])
async def test_the_topics_of_all_brokers_are_listed_once_and_sorted(
    admin: Admin, refused: bool
) -> None:
    for local in ("m", "b"):
        await admin.done("PUT", f"~/non-persistent/t1/n1/{local}")
    second = (409, {"reason": "not now"}) if refused else (200, names("c", "z", "d"))
    script = Scripted((200, names("z", "b", "a", "k")), second)
    peers = Peers(Three(), Scripted().app())
    peers._sender._remote = httpx.AsyncClient(transport=httpx.ASGITransport(script.app()))
    request = request_of("/")
    request.scope["app"] = SimpleNamespace(
        state=SimpleNamespace(service=admin.service, peers=peers)
    )
    assert await topic_names(request, NAMESPACE, "persistent") == []
    assert script.requests == [], "every broker reads the stored topics itself"
    if refused:
        with pytest.raises(Refused, match="not now"):
            await topic_names(request, NAMESPACE, "non-persistent")
    else:
        found = await topic_names(request, NAMESPACE, "non-persistent")
        assert [name.local for name in found] == ["a", "b", "c", "d", "k", "m", "z"]
    path, query = "/admin/v2/non-persistent/t1/n1", "includeSystemTopic=true&authoritative=true"
    assert script.requests == [("GET", path, query)] * 2
    await peers.close()
