"""The topics of a namespace over all brokers: what is not persistent is known to its owner only."""

import msgspec
from starlette.requests import Request

from magnetar.admin.cluster.partitions import raise_refusal
from magnetar.admin.cluster.peers import asked_by_peer
from magnetar.admin.cluster.route import peers_of
from magnetar.admin.context import service_of
from magnetar.core.names import NamespaceName, TopicName, parse_topic


async def topic_names(request: Request, namespace: NamespaceName, domain: str) -> list[TopicName]:
    """All topics and partitions of the domain in the namespace, in order.

    The other brokers are asked for this very path; a peer that asks gets what is here.
    """
    names = await service_of(request).topics.names(namespace, domain)
    peers = peers_of(request)
    if domain == "persistent" or peers is None or asked_by_peer(request):
        return names
    found = set(names)
    answers = await peers.ask_all(
        request, f"/admin/v2/{domain}/{namespace}", "includeSystemTopic=true"
    )
    raise_refusal(answers, ())
    for each in answers:
        found.update(map(parse_topic, msgspec.json.decode(each.body, type=list[str])))
    return sorted(found)
