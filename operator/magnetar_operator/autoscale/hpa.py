"""Builds the metrics and the behavior of the brokers' HorizontalPodAutoscaler (`autoscaling/v2`).

The metrics are CPU as a share of the request, and the drain pressure (see `metrics`); the
autoscaler follows the one that needs more brokers. It scales up at once, at most doubling every 30
seconds. It scales down by one broker a minute, after five quiet minutes, so that a step of load
causes one rise and one fall.
"""

from typing import Any, Final

from magnetar_operator.autoscale.metrics import CLUSTER, TIME_TO_DRAIN
from magnetar_operator.models.cluster import Autoscaling
from magnetar_operator.models.values import seconds

PRESSURE_METRIC: Final = "magnetar_drain_pressure_percent"
PRESSURE_TARGET: Final = "100"

BEHAVIOR: Final[dict[str, Any]] = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Percent", "value": 100, "periodSeconds": 30},
            {"type": "Pods", "value": 2, "periodSeconds": 30},
        ],
    },
    "scaleDown": {
        "stabilizationWindowSeconds": 300,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
    },
}


def metrics(cluster: str, autoscaling: Autoscaling) -> list[dict[str, Any]]:
    """`spec.metrics` for a MagnetarCluster of that name."""
    target = {"type": "Utilization", "averageUtilization": autoscaling.target_cpu_percent}
    built: list[dict[str, Any]] = [
        {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    ]
    if autoscaling.backlog.enabled:
        drain_s = max(1, round(seconds(autoscaling.backlog.time_to_drain)))
        labels = {CLUSTER: cluster, TIME_TO_DRAIN: str(drain_s)}
        metric = {"name": PRESSURE_METRIC, "selector": {"matchLabels": labels}}
        built.append(
            {
                "type": "External",
                "external": {
                    "metric": metric,
                    "target": {"type": "Value", "value": PRESSURE_TARGET},
                },
            }
        )
    return built


def behavior(autoscaling: Autoscaling) -> dict[str, Any]:
    """`spec.behavior`."""
    custom: dict[str, Any] | None = autoscaling.behavior
    return BEHAVIOR if custom is None else custom
