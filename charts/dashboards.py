"""Generates Grafana's dashboards (JSON) from dashboards.yaml, which documents its format."""

import json
from pathlib import Path
from typing import Any, Final

import yaml

SOURCE: Final = Path(__file__).with_name("dashboards.yaml")
COLUMNS: Final = 24
PANELS_PER_ROW: Final = 3
PANEL_HEIGHT: Final = 8
STAT_HEIGHT: Final = 4
STATS_PER_ROW: Final = 6
SCHEMA_VERSION: Final = 39
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

CLUSTER: Final = 'cluster=~"$cluster"'
NAMESPACE: Final = f'{CLUSTER},namespace=~"$namespace"'
TOPIC: Final = f'{NAMESPACE},topic=~"$topic"'
CHOSEN: Final = {"@cluster": CLUSTER, "@namespace": NAMESPACE, "@topic": TOPIC}
VARIABLES: Final = {
    "cluster": "label_values(pulsar_version_info, cluster)",
    "namespace": f"label_values(pulsar_topics_count{{{CLUSTER}}}, namespace)",
    "topic": f"label_values(pulsar_rate_in{{{NAMESPACE}}}, topic)",
}


def files() -> dict[str, str]:
    """The files of the folder `dashboards`, with their texts."""
    boards = yaml.safe_load(SOURCE.read_text())
    return {
        f"{name}.json": json.dumps(document(name, board), indent=1, ensure_ascii=False) + "\n"
        for name, board in boards.items()
    }


def document(name: str, board: dict[str, Any]) -> dict[str, Any]:
    """One dashboard."""
    return {
        "uid": f"magnetar-{name}",
        "title": board["title"],
        "tags": ["magnetar"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {"type": "dashboards", "tags": ["magnetar"], "asDropdown": True, "title": "Magnetar"}
        ],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                *(variable(name) for name in board["variables"]),
            ]
        },
        "panels": panels(board["rows"]),
    }


def variable(name: str) -> dict[str, Any]:
    """What is chosen on top of a dashboard: any number of values, at first all."""
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": VARIABLES[name], "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def panels(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows from top to bottom, panels from left to right."""
    laid_out: list[dict[str, Any]] = []
    y = 0
    for title, row in rows.items():
        laid_out.append(
            {
                "id": len(laid_out) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            }
        )
        y += 1
        of_stats = "stat" in row[0]
        count = STATS_PER_ROW if of_stats else PANELS_PER_ROW
        height = STAT_HEIGHT if of_stats else PANEL_HEIGHT
        width = COLUMNS // count
        for place, described in enumerate(row):
            line, column = divmod(place, count)
            where = {"x": column * width, "y": y + line * height, "w": width, "h": height}
            laid_out.append({"id": len(laid_out) + 1, **panel(described), "gridPos": where})
        y += height * -(-len(row) // count)
    return laid_out


def panel(given: dict[str, Any]) -> dict[str, Any]:
    """A graph, or one number."""
    series = {"": given["stat"]} if "stat" in given else given["series"]
    return {
        "type": "stat" if "stat" in given else "timeseries",
        "title": given["title"],
        **({"description": given["text"]} if "text" in given else {}),
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": given["unit"], "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": f"S{number}",
                "datasource": DATASOURCE,
                "expr": chosen(expression),
                "legendFormat": legend,
            }
            for number, (legend, expression) in enumerate(series.items())
        ],
    }


def chosen(expression: str) -> str:
    """The expression of only what is chosen."""
    for word, matchers in CHOSEN.items():
        expression = expression.replace(word, matchers)
    return expression
