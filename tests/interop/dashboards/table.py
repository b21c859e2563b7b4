"""The page of public dashboards, made from the lists of panels and of reasons."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .panels import Panel, panels
from .reasons import ABSENT_BOARDS, REASONS, Reason, reason_of

PAGE: Final = Path(__file__).parents[3] / "docs" / "run" / "dashboards.md"
HEAD: Final = """# Public Grafana dashboards for Pulsar

Made by `python -m tests.interop.dashboards page`; do not edit. `tests/interop/test_dashboards.py`
evaluates every query of these boards with a real Prometheus on the metrics of a cluster under load:
the boards of [streamnative/apache-pulsar-grafana-dashboard](
https://github.com/streamnative/apache-pulsar-grafana-dashboard) (`dashboards/`) and of
[lhotari/pulsar-grafana-dashboards](https://github.com/lhotari/pulsar-grafana-dashboards)
(`pulsar/`). *With data*: each of the panel's queries has data, if need be under a condition that is
listed below. *In part*: at least one has.

The boards of the first kind choose by the labels `cluster`, `job` and `instance`, those of the
second also by `kubernetes_pod_name`; the chart's PodMonitors set all of them, with the jobs
`broker`, `bookie` and `recovery`. Without the chart, Prometheus' configuration sets them:

    scrape_configs:
      - job_name: broker
        honor_labels: true
        static_configs:
          - targets: ["127.0.0.1:8080"]
            labels: {cluster: orders, kubernetes_pod_name: broker-1}

The chart's own dashboards and alerts are evaluated as well.
"""
Judged = tuple[Panel, list[Reason | None]]
"""A panel, and why each of its queries has no data."""


def page() -> str:
    """The text of the page."""
    judged = [
        (panel, [reason_of(panel.board, expression) for expression in panel.expressions])
        for panel in panels()
    ]
    return "\n".join([HEAD, *_boards(judged), "", *_missing(judged), *_absent(), ""])


def _data(reasons: list[Reason | None]) -> str:
    """Whether a panel has data: `all`, `some` or `none` of its queries."""
    missing = [reason is not None and not reason.conditional for reason in reasons]
    return "none" if all(missing) else "some" if any(missing) else "all"


def _boards(judged: list[Judged]) -> Iterator[str]:
    yield "## Boards"
    yield ""
    yield "| Board | Panels | With data | In part | Without |"
    yield "|---|---:|---:|---:|---:|"
    counts: dict[str, list[str]] = {}
    for panel, reasons in judged:
        counts.setdefault(panel.board, []).append(_data(reasons))
    for board, data in counts.items():
        row = (len(data), *(data.count(kind) for kind in ("all", "some", "none")))
        yield f"| {board} | {' | '.join(map(str, row))} |"


def _missing(judged: list[Judged]) -> Iterator[str]:
    for conditional in (False, True):
        kind = "with data under a condition" if conditional else "without data"
        yield f"## Panels with a query {kind}"
        yield ""
        for reason in REASONS:
            if reason.conditional is conditional:
                yield _panels_of(reason, judged)
        yield ""


def _panels_of(reason: Reason, judged: list[Judged]) -> str:
    found: dict[str, dict[str, None]] = {}
    for panel, reasons in judged:
        if reason in reasons:
            found.setdefault(panel.board, {})[panel.title] = None
    boards = "; ".join(f"{board}: {', '.join(titles)}" for board, titles in found.items())
    return f"- **{reason.text}** {boards}"


def _absent() -> Iterator[str]:
    yield "## Boards of parts that Magnetar does not have"
    yield ""
    yield "| Board | Panels | Of |"
    yield "|---|---:|---|"
    for board, (count, part) in ABSENT_BOARDS.items():
        yield f"| {board} | {count} | {part} |"
