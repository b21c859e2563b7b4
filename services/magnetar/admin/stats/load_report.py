"""Documents of the load balance: `GET /broker-stats/load-report` and `GET /brokers/balance`.

The report has the form of Pulsar's `LocalBrokerData`: usages are in percent of a core and in MiB.
Values that we do not measure (direct memory, the network card) are -1, Pulsar's "unknown".
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from magnetar.broker.service import BrokerService

if TYPE_CHECKING:
    from magnetar.broker.balance.balancer import Counts
    from magnetar.broker.balance.model import BundleLoad, Decision, LoadReport, Round

_UNKNOWN: Final = {"usage": -1.0, "limit": -1.0}
_MIB: Final = 1 << 20
_CORE_PERCENT: Final = 100.0


def load_report(service: BrokerService, report: "LoadReport", bundles: Iterable[str]) -> object:
    """Returns the load report of this broker."""
    memory = {
        "usage": report.memory_bytes / _MIB,
        "limit": report.memory_limit_bytes / _MIB,
    }
    return {
        "webServiceUrl": service.record.urls.http_url,
        "pulsarServiceUrl": service.record.urls.service_url,
        **_tls_urls(service),
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "cpu": {"usage": report.cpu * _CORE_PERCENT, "limit": _CORE_PERCENT},
        "memory": memory,
        "directMemory": _UNKNOWN,
        "bandwidthIn": _UNKNOWN,
        "bandwidthOut": _UNKNOWN,
        "msgThroughputIn": report.msg_throughput_in,
        "msgThroughputOut": report.msg_throughput_out,
        "msgRateIn": report.msg_rate_in,
        "msgRateOut": report.msg_rate_out,
        "lastUpdate": report.updated_ms,
        "startTimestamp": report.started_ms,
        "lastStats": {load.bundle: _bundle(load) for load in report.bundles},
        "numTopics": report.topics,
        "numBundles": report.bundle_count,
        "numConsumers": report.consumers,
        "numProducers": report.producers,
        "bundles": sorted(bundles),
        "lastBundleGains": [],
        "lastBundleLosses": [],
        "brokerVersionString": service.version,
        "protocols": {},
        "advertisedListeners": {},
        "bundleStats": {load.bundle: _bundle(load) for load in report.bundles},
        "maxResourceUsage": max(report.cpu, report.memory),
        "loadReportType": "LocalBrokerData",
    }


def _tls_urls(service: BrokerService) -> dict[str, object]:
    """Returns the addresses with TLS that the broker has."""
    urls = service.record.urls
    addresses = {
        "webServiceUrlTls": urls.http_url_tls,
        "pulsarServiceUrlTls": urls.service_url_tls,
    }
    return {name: url for name, url in addresses.items() if url}


def _bundle(load: "BundleLoad") -> dict[str, object]:
    return {
        "msgRateIn": load.msg_rate_in,
        "msgThroughputIn": load.msg_throughput_in,
        "msgRateOut": load.msg_rate_out,
        "msgThroughputOut": load.msg_throughput_out,
        "consumerCount": load.consumers,
        "producerCount": load.producers,
        "topics": load.topics,
        "cacheSize": 0,
    }


class BrokerLoad(msgspec.Struct, rename="camel"):
    """The last load report of a broker, as `GET /brokers/balance` shows it."""

    cpu: float
    memory: float
    bundles: int
    topics: int
    producers: int
    consumers: int
    msg_rate_in: float
    msg_rate_out: float
    draining: bool
    reported_ms: int


class BalanceView(msgspec.Struct, rename="camel"):
    """The answer of `GET /brokers/balance`."""

    leader: str | None
    brokers: dict[str, BrokerLoad]
    """The reports by broker id, sorted."""
    moved_by_this_broker: int
    split_by_this_broker: int
    log: "list[Round]"
    """The rounds of decisions, newest first."""


def balance_view(
    leader: str | None, reports: "Iterable[LoadReport]", rounds: "Sequence[Round]", counts: "Counts"
) -> BalanceView:
    """Returns the leader, the brokers' loads and the log of decisions."""
    brokers = {
        report.broker_id: BrokerLoad(
            cpu=report.cpu,
            memory=round(report.memory, 4),
            bundles=report.bundle_count,
            topics=report.topics,
            producers=report.producers,
            consumers=report.consumers,
            msg_rate_in=report.msg_rate_in,
            msg_rate_out=report.msg_rate_out,
            draining=report.draining,
            reported_ms=report.updated_ms,
        )
        for report in sorted(reports, key=lambda report: report.broker_id)
    }
    return BalanceView(
        leader, brokers, counts.bundles_unloaded, counts.bundles_split, list(reversed(rounds))
    )


def decisions_view(decisions: "Iterable[Decision]") -> list[object]:
    """Returns the decisions of a dry run."""
    return [msgspec.to_builtins(decision) for decision in decisions]
