"""`GET /broker-stats/load-report`, and the balancer's state, as documents.

The report has the shape of Pulsar's `LocalBrokerData`: usages are in percent of a core and in MiB.
What Pulsar has and we do not measure (direct memory, the network card) has its -1 for "unknown".
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from magnetar.broker.balance.balancer import Counts
from magnetar.broker.balance.model import BundleLoad, Decision, LoadReport, Round
from magnetar.broker.service import BrokerService

_UNKNOWN: Final = {"usage": -1.0, "limit": -1.0}
_MIB: Final = 1 << 20
_CORE_PERCENT: Final = 100.0


def load_report(service: BrokerService, report: LoadReport, bundles: Iterable[str]) -> object:
    """What this broker reports of itself."""
    memory = {
        "usage": report.memory_bytes / _MIB,
        "limit": report.memory_limit_bytes / _MIB,
    }
    return {
        "webServiceUrl": service.http_url,
        "pulsarServiceUrl": service.service_url,
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
        "lastStats": {each.bundle: _bundle(each) for each in report.bundles},
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
        "bundleStats": {each.bundle: _bundle(each) for each in report.bundles},
        "maxResourceUsage": max(report.cpu, report.memory),
        "loadReportType": "LocalBrokerData",
    }


def _bundle(load: BundleLoad) -> dict[str, object]:
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


def balance_view(
    leader: str | None, reports: Iterable[LoadReport], rounds: Iterable[Round], counts: Counts
) -> dict[str, Any]:
    """`GET /brokers/balance`: who leads, the brokers' loads, and the log of why, newest first."""
    brokers = {
        report.broker_id: {
            "cpu": report.cpu,
            "memory": round(report.memory, 4),
            "bundles": report.bundle_count,
            "topics": report.topics,
            "producers": report.producers,
            "consumers": report.consumers,
            "msgRateIn": report.msg_rate_in,
            "msgRateOut": report.msg_rate_out,
            "draining": report.draining,
            "reportedMs": report.updated_ms,
        }
        for report in sorted(reports, key=lambda report: report.broker_id)
    }
    return {
        "leader": leader,
        "brokers": brokers,
        "movedByThisBroker": counts.bundles_unloaded,
        "splitByThisBroker": counts.bundles_split,
        "log": [msgspec.to_builtins(each) for each in reversed(list(rounds))],
    }


def decisions_view(decisions: Iterable[Decision]) -> list[Any]:
    """What a dry run decided."""
    return [msgspec.to_builtins(each) for each in decisions]
