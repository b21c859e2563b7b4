"""The external metrics for autoscalers, and how each is computed from figures. Pure: no IO.

Every request has the label `cluster`, a MagnetarCluster in the requester's namespace.

- `magnetar_drain_pressure_percent`: the read rate that is needed to drain the backlog within
  `timeToDrain` seconds (also a label; DRAIN_S_DEFAULT), in percent of the present one:
  100 * (bytes per second in + backlog / timeToDrain) / bytes per second out. It is proportional to
  the number of brokers that are needed, which an autoscaler's arithmetic requires. The time to
  drain is not: it is infinite as soon as reading is no faster than writing. Without a backlog the
  pressure is 0, and CPU alone decides.
- `magnetar_time_to_drain_seconds`: that time, for people and for their own rules.
- `magnetar_backlog_bytes`, `magnetar_backlog_entries`: of all subscriptions of the cluster.
- `magnetar_subscription_backlog_entries`, `magnetar_subscription_backlog_bytes`: of one
  subscription (labels `tenant`, `namespace`, `topic` and `subscription`), for the Deployments of
  consumers. A partitioned topic counts as a whole.
- `magnetar_analytics_backlog_messages`, `…_oldest_unacked_age_seconds`, `…_time_to_drain_seconds`:
  of a namespace (labels `tenant`, `namespace`), from the last run of the backlog job; brokers do
  not compute them. There is no value if that run is older than `freshFor` seconds (a label;
  FRESH_S_DEFAULT), or if the job could not compute the figure. Autoscaling that must follow traffic
  uses the other metrics, which are the brokers' own and current.

Values are Kubernetes quantities: whole numbers, or thousandths as `1500m`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from magnetar.documents.backlog import BacklogRecord, BrokerDrain

CLUSTER: Final = "cluster"
TIME_TO_DRAIN: Final = "timeToDrain"
DRAIN_S_DEFAULT: Final = 120
DRAIN_S_MAX: Final = 86_400
KEEPS_UP_S: Final = 5.0
PRESSURE_PERCENT_MAX: Final = 400.0
"""Also the value while nothing is read: the autoscaler then scales up as far as it may."""
FRESH_FOR: Final = "freshFor"
FRESH_S_DEFAULT: Final = 3_600
FRESH_S_MAX: Final = 7 * 86_400
NAMESPACE_LABELS: Final = ("tenant", "namespace")
SUBSCRIPTION_LABELS: Final = ("tenant", "namespace", "topic", "subscription")

_TERM: Final = re.compile(r"\s*([-\w./]+)\s*(?:==?)\s*([-\w.]*)\s*")


class MetricRefused(ValueError):
    """The metric or its labels are wrong; the text says what to use instead."""


DrainFigures = BrokerDrain
"""The answer of `GET /admin/v2/magnetar/drain` for a whole cluster."""


class SubscriptionFigures(msgspec.Struct, frozen=True):
    """The backlog of one subscription."""

    entries: int
    size_bytes: int


AnalyticsFigures = BacklogRecord
"""The answer of `GET /admin/v2/magnetar/analytics/backlog/…` for a namespace; None: unknown."""


def pressure_percent(figures: DrainFigures, drain_s: float) -> float:
    """The needed read rate in percent of the present one: 0 to PRESSURE_PERCENT_MAX."""
    if figures.wanted_bytes <= figures.wanted_bytes_per_second_out * KEEPS_UP_S:
        return 0.0
    needed = figures.wanted_bytes_per_second_in + figures.wanted_bytes / drain_s
    present = figures.wanted_bytes_per_second_out
    if present * PRESSURE_PERCENT_MAX <= needed * 100.0:
        return PRESSURE_PERCENT_MAX
    return 100.0 * needed / present


OF_CLUSTER: Final[Mapping[str, Callable[[DrainFigures, float], float]]] = MappingProxyType(
    {
        "magnetar_drain_pressure_percent": pressure_percent,
        "magnetar_time_to_drain_seconds": lambda figures, _: figures.time_to_drain_seconds,
        "magnetar_backlog_bytes": lambda figures, _: figures.backlog_bytes,
        "magnetar_backlog_entries": lambda figures, _: figures.backlog_entries,
    }
)
OF_SUBSCRIPTION: Final[Mapping[str, Callable[[SubscriptionFigures], int]]] = MappingProxyType(
    {
        "magnetar_subscription_backlog_entries": lambda figures: figures.entries,
        "magnetar_subscription_backlog_bytes": lambda figures: figures.size_bytes,
    }
)
OF_ANALYTICS: Final[Mapping[str, Callable[[AnalyticsFigures], float | None]]] = MappingProxyType(
    {
        "magnetar_analytics_backlog_messages": lambda figures: figures.backlog_messages,
        "magnetar_analytics_backlog_oldest_unacked_age_seconds": (
            lambda figures: figures.oldest_age_seconds
        ),
        "magnetar_analytics_backlog_time_to_drain_seconds": (
            lambda figures: figures.drains_in_seconds
        ),
    }
)
NAMES: Final = (*OF_CLUSTER, *OF_SUBSCRIPTION, *OF_ANALYTICS)
LABELS: Final = (
    dict.fromkeys(OF_CLUSTER, (CLUSTER,))
    | dict.fromkeys(OF_SUBSCRIPTION, (CLUSTER, *SUBSCRIPTION_LABELS))
    | dict.fromkeys(OF_ANALYTICS, (CLUSTER, *NAMESPACE_LABELS))
)
"""The labels that a request for each metric must have."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request of an autoscaler: a metric, and the labels that select its value."""

    metric: str
    namespace: str
    labels: Mapping[str, str]

    @property
    def cluster(self) -> str:
        return self.labels[CLUSTER]

    @property
    def drain_s(self) -> int:
        return int(self.labels.get(TIME_TO_DRAIN, DRAIN_S_DEFAULT))

    @property
    def fresh_s(self) -> int:
        return int(self.labels.get(FRESH_FOR, FRESH_S_DEFAULT))

    @property
    def of_subscription(self) -> bool:
        return self.metric in OF_SUBSCRIPTION

    @property
    def of_analytics(self) -> bool:
        return self.metric in OF_ANALYTICS


def parse_question(metric: str, namespace: str, selector: str) -> Question:
    """Parses and checks a request. Raises MetricRefused."""
    if metric not in NAMES:
        raise MetricRefused(f"there is no metric {metric}; the metrics are {', '.join(NAMES)}")
    labels: dict[str, str] = {}
    for term in filter(None, selector.split(",")):
        parts = _TERM.fullmatch(term)
        if parts is None:
            raise MetricRefused(f"selector {selector!r}: only label=value is supported: {term!r}")
        labels[parts[1]] = parts[2]
    if missing := [name for name in LABELS[metric] if not labels.get(name)]:
        raise MetricRefused(f"{metric} needs the labels {', '.join(missing)}")
    for name, max_s in ((TIME_TO_DRAIN, DRAIN_S_MAX), (FRESH_FOR, FRESH_S_MAX)):
        value = labels.get(name)
        if value is not None and not (value.isdigit() and 0 < int(value) <= max_s):
            raise MetricRefused(f"{name}={value}: must be 1 to {max_s} seconds")
    return Question(metric, namespace, MappingProxyType(labels))


def quantity(value: float) -> str:
    """A number as a Kubernetes quantity."""
    thousandths = round(value * 1_000)
    whole, rest = divmod(thousandths, 1_000)
    return f"{thousandths}m" if rest else str(whole)


def value_list(question: Question, value: float, at: str) -> dict[str, object]:
    """An `ExternalMetricValueList` with one item; `at` is the time, RFC 3339."""
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": [
            {
                "metricName": question.metric,
                "metricLabels": dict(question.labels),
                "timestamp": at,
                "value": quantity(value),
            }
        ],
    }
