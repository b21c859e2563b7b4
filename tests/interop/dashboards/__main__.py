"""`python -m tests.interop.dashboards`: public Grafana dashboards on Magnetar's metrics.

page  writes docs/run/dashboards.md from the lists of panels and of reasons
run   starts a cluster and a Prometheus, and prints each query that has no data, or only zeros
"""

import argparse
import sys
import tempfile
import time
from math import isnan
from pathlib import Path
from typing import Final

from . import table
from .panels import panels, substituted
from .reasons import reason_of
from .rig import scraped, variables

LOAD_S: Final = 75.0
"""Longer than the minute whose rates some metrics show."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.dashboards")
    parser.add_argument("action", choices=("page", "run"))
    if parser.parse_args().action == "page":
        table.PAGE.write_text(table.page())
        return 0
    with tempfile.TemporaryDirectory(prefix="dashboards-") as directory:
        return _run(Path(directory))


def _run(directory: Path) -> int:
    counts = {"data": 0, "zeros": 0, "nothing": 0, "error": 0}
    unexpected = 0
    with scraped(directory) as prometheus:
        time.sleep(LOAD_S)
        for panel in panels():
            for text in panel.expressions:
                try:
                    values = prometheus.values(substituted(text, variables(panel.board)))
                except ValueError as error:
                    outcome, values = f"error: {error}", []
                else:
                    shown = [value for value in values if not isnan(value)]
                    outcome = "nothing" if not shown else "data" if any(shown) else "zeros"
                counts[outcome.partition(":")[0]] += 1
                reason = reason_of(panel.board, text)
                unexpected += reason is None and outcome not in ("data", "zeros")
                if outcome != "data":
                    why = reason.text if reason else ""
                    print(f"{outcome} | {panel.board} | {panel.title} | {text} | {why}")
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    print(f"{unexpected} have no data without a reason")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
