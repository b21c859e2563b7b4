"""The external metrics that autoscalers can ask for, and how each is made of figures.

All are asked with the label `cluster` (a MagnetarCluster of the asker's namespace).

- `magnetar_drain_pressure_percent`: by how much reading must be faster so that what consumers wait
  for is read within `timeToDrain` seconds (a label, too; DRAIN_S_DEFAULT): 100 * (bytes per second
  in + backlog / timeToDrain) / bytes per second out. It is proportional to the brokers needed, as
  an autoscaler's arithmetic takes for granted; a time is not: it is endless the moment that reading
  is as slow as writing. Without a backlog it is 0, and CPU decides alone.
- `magnetar_time_to_drain_seconds`: that time, for people and for their own rules.
- `magnetar_backlog_bytes`, `magnetar_backlog_entries`: of all subscriptions of the cluster.
- `magnetar_subscription_backlog_entries`, `magnetar_subscription_backlog_bytes`: of one, with the
  labels `tenant`, `namespace`, `topic` and `subscription`: what consumers' own Deployments scale
  on. A partitioned topic counts as a whole.
- `magnetar_analytics_backlog_messages`, `…_oldest_unacked_age_seconds`, `…_time_to_drain_seconds`:
  of a namespace (labels `tenant`, `namespace`), as the last run of the backlog job found them;
  brokers have no such figures at hand. They are as old as that run: no answer where it was more
  than `freshFor` seconds ago (a label; FRESH_S_DEFAULT), or where the figure is not known. What
  must follow traffic asks for the others, which are brokers' own of this moment.

No IO here. Values are Kubernetes quantities: whole numbers, or thousandths as `1500m`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

CLUSTER: Final = "cluster"
TIME_TO_DRAIN: Final = "timeToDrain"
DRAIN_S_DEFAULT: Final = 120
DRAIN_S_MAX: Final = 86_400
KEEPS_UP_S: Final = 5.0
PRESSURE_PERCENT_MAX: Final = 400.0
"""Also where nothing is read at all yet: an autoscaler then goes up by as much as it may."""
FRESH_FOR: Final = "freshFor"
FRESH_S_DEFAULT: Final = 3_600
FRESH_S_MAX: Final = 7 * 86_400
NAMESPACE_LABELS: Final = ("tenant", "namespace")
SUBSCRIPTION_LABELS: Final = ("tenant", "namespace", "topic", "subscription")

_TERM: Final = re.compile(r"\s*([-\w./]+)\s*(?:==?)\s*([-\w.]*)\s*")


class MetricRefused(ValueError):
    """What was asked for cannot be answered; the text says what to ask instead."""


class DrainFigures(msgspec.Struct, rename="camel", frozen=True):
    """What `GET /admin/v2/magnetar/drain` says of a whole cluster."""

    backlog_entries: int
    backlog_bytes: int
    wanted_bytes: int
    wanted_bytes_per_second_in: float
    wanted_bytes_per_second_out: float
    time_to_drain_seconds: float


class SubscriptionFigures(msgspec.Struct, frozen=True):
    """The backlog of one subscription."""

    entries: int
    size_bytes: int


class AnalyticsFigures(msgspec.Struct, rename="camel", frozen=True):
    """What `GET /admin/v2/magnetar/analytics/backlog/…` says of a namespace; None: not known."""

    at_ms: int
    backlog_messages: int | None = None
    oldest_age_seconds: float | None = None
    drains_in_seconds: float | None = None


def pressure_percent(figures: DrainFigures, drain_s: float) -> float:
    """See the module's text; 0 to PRESSURE_PERCENT_MAX."""
    if figures.wanted_bytes <= figures.wanted_bytes_per_second_out * KEEPS_UP_S:
        return 0.0
    needed = figures.wanted_bytes_per_second_in + figures.wanted_bytes / drain_s
    there = figures.wanted_bytes_per_second_out
    if there * PRESSURE_PERCENT_MAX <= needed * 100.0:
        return PRESSURE_PERCENT_MAX
    return 100.0 * needed / there


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
"""That each must be asked with."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of an autoscaler."""

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


def asked(metric: str, namespace: str, selector: str) -> Asked:
    """Checks a question. Raises MetricRefused."""
    if metric not in NAMES:
        raise MetricRefused(f"there is no metric {metric}; there are {', '.join(NAMES)}")
    labels: dict[str, str] = {}
    for term in filter(None, selector.split(",")):
        found = _TERM.fullmatch(term)
        if found is None:
            raise MetricRefused(f"selector {selector!r}: only label=value is understood: {term!r}")
        labels[found[1]] = found[2]
    if missing := [name for name in LABELS[metric] if not labels.get(name)]:
        raise MetricRefused(f"{metric} must be asked with the labels {', '.join(missing)}")
    for name, most in ((TIME_TO_DRAIN, DRAIN_S_MAX), (FRESH_FOR, FRESH_S_MAX)):
        given = labels.get(name)
        if given is not None and not (given.isdigit() and 0 < int(given) <= most):
            raise MetricRefused(f"{name}={given}: must be 1 to {most} seconds")
    return Asked(metric, namespace, MappingProxyType(labels))


def quantity(value: float) -> str:
    """As Kubernetes writes it."""
    thousandths = round(value * 1_000)
    whole, rest = divmod(thousandths, 1_000)
    return f"{thousandths}m" if rest else str(whole)


def value_list(question: Asked, value: float, at: str) -> dict[str, object]:
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
