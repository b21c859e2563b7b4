"""`/admin/v2/broker-stats/metrics`: this broker's figures as Pulsar's monitoring documents.

Names and dimensions are Pulsar's. Figures of the JVM and of Netty's pools are missing, because
there are none; `/metrics` has many more.
"""

from collections import defaultdict
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import service_of
from magnetar.admin.http.answers import answer
from magnetar.admin.http.routes import Routes
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.api import Topic

router = Routes(prefix="/admin/v2/broker-stats", tags=("brokers",))

Figures = dict[str, float]

_OF_NAMESPACES: Final = (
    "brk_in_rate",
    "brk_in_tp_rate",
    "brk_out_rate",
    "brk_out_tp_rate",
    "brk_storage_size",
    "brk_msg_backlog",
    "brk_no_of_subscriptions",
    "brk_no_of_producers",
    "brk_no_of_consumers",
)


@router.get("/metrics", summary="Figures of this broker, by namespace (see also /metrics)")
async def metrics(request: Request) -> Response:
    service = service_of(request)
    own = {"broker": service.broker_id, "cluster": service.cluster}
    documents = [_document(_cache(service), {})]
    documents += [
        _document(figures, {"namespace": namespace})
        for namespace, figures in _by_namespace(service).items()
    ]
    documents.append(_document(_connections(service), own | {"metric": "broker_connection"}))
    health: Figures = {"brk_health": 0 if service.stopping else 1}
    documents.append(_document(health, own | {"metric": "broker_health"}))
    return answer(documents)


def _document(figures: Figures, dimensions: dict[str, str]) -> dict[str, object]:
    return {"metrics": figures, "dimensions": dimensions}


def _cache(service: BrokerService) -> Figures:
    cache = service.ledgers.cache.stats()
    return {
        "brk_ml_count": len(service.ledgers.opened),
        "brk_ml_cache_used_size": cache.size_bytes,
    }


def _connections(service: BrokerService) -> Figures:
    opened, now = service.sessions_total, len(service.sessions)
    return {
        "brk_active_connections": now,
        "brk_connection_created_total_count": opened,
        "brk_connection_closed_total_count": opened - now,
    }


def _by_namespace(service: BrokerService) -> dict[str, Figures]:
    sums: dict[str, Figures] = defaultdict(lambda: dict.fromkeys(_OF_NAMESPACES, 0))
    for topic in service.topics:
        figures = sums[str(topic.name.namespace)]
        for name, value in zip(_OF_NAMESPACES, _of_topic(topic), strict=True):
            figures[name] += value
    return sums


def _of_topic(topic: Topic) -> tuple[float, ...]:
    """Returns a topic's figures in the order of `_OF_NAMESPACES`."""
    subscriptions = [subscription.stats() for subscription in topic.subscriptions.values()]
    return (
        topic.counters.message_rate_in,
        topic.counters.bytes_rate_in,
        sum(stats.msg_rate_out for stats in subscriptions),
        sum(stats.msg_throughput_out for stats in subscriptions),
        topic.stored_bytes,
        sum(stats.msg_backlog for stats in subscriptions),
        len(subscriptions),
        len(topic.producers),
        sum(len(stats.consumers) for stats in subscriptions),
    )
