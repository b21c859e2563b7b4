"""The settings of a process's operation: metrics, deletion by force, log lines."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings import choices
from magnetar.settings.field import setting

OPERATION: Final = "Operation"


@dataclass(frozen=True, kw_only=True)
class OperationSettings:
    """The detail of metrics, deletions by force, and the file for load balancers."""

    topic_metrics: bool = setting(
        True,
        "Whether /metrics has series per topic; otherwise per namespace.",
        group=OPERATION,
        pulsar="exposeTopicLevelMetricsInPrometheus",
    )
    consumer_metrics: bool = setting(
        False,
        "Whether /metrics also has series per consumer.",
        group=OPERATION,
        pulsar="exposeConsumerLevelMetricsInPrometheus",
    )
    force_delete_namespace: bool = setting(
        False,
        "Whether a namespace may be deleted together with its topics.",
        group=OPERATION,
        pulsar="forceDeleteNamespaceAllowed",
    )
    force_delete_tenant: bool = setting(
        False,
        "Whether a tenant may be deleted together with its namespaces.",
        group=OPERATION,
        pulsar="forceDeleteTenantAllowed",
    )
    status_file: str = setting(
        "",
        "File that must exist for GET /status.html to answer 200, so that its deletion takes the "
        "broker out of a load balancer; empty: always 404.",
        group=OPERATION,
        pulsar="statusFilePath",
    )


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """The log lines of a process."""

    log_format: choices.LogFormat = setting(
        "auto",
        "The format of log lines: `auto` is console on a terminal and JSON elsewhere.",
        group=OPERATION,
    )
    log_level: choices.LogLevel = setting(
        "info", "The lowest level of log lines that are printed.", group=OPERATION
    )
