"""The default health report of a broker, for probes and for `/status`."""

from collections.abc import Mapping

from magnetar.broker.service import BrokerService
from magnetar.observe.health import Probes


def default_probes(service: BrokerService) -> Probes:
    """Returns probes that report the broker as ready unless it is stopping."""

    def status() -> Mapping[str, object]:
        return broker_status(service)

    return Probes(lambda: "stopping" if service.stopping else "", status)


def broker_status(service: BrokerService) -> dict[str, object]:
    """Returns the fields that `/status` shows for every broker."""
    urls = service.record.urls
    status: dict[str, object] = {
        "role": "broker",
        "version": service.version,
        "cluster": service.cluster,
        "service_url": service.service_url,
        "topics": len(service.topics),
        "connections": len(service.sessions),
    }
    secure = {"service_url_tls": urls.service_url_tls, "http_url_tls": urls.http_url_tls}
    return status | {name: url for name, url in secure.items() if url}
