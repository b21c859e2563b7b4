"""A real Prometheus on a free port of loopback, which scrapes the members of a cluster.

Targets get the labels that the chart's PodMonitors give: `job`, `cluster`, `kubernetes_namespace`
and `kubernetes_pod_name`.
"""

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest

INSTALL: Final = "apt-get install -y --no-install-recommends prometheus"
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0
QUERY_TIMEOUT_S: Final = 30.0
TOOL_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.05
SCRAPE_INTERVAL_S: Final = 1
LISTENING: Final = re.compile(r'msg="Listening on" address=(\S+)')


@dataclass(frozen=True, slots=True)
class Target:
    """A page of metrics, and the labels that its series get."""

    address: str
    job: str
    pod: str


class Prometheus:
    """A process of Prometheus while its context lasts."""

    def __init__(
        self, directory: Path, cluster: str, targets: Iterable[Target], rules: Path | None = None
    ) -> None:
        self._directory = directory
        self._config = configuration(cluster, targets, rules)
        self._log = directory / "prometheus.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> "Prometheus":
        path = self._directory / "prometheus.yaml"
        path.write_text(json.dumps(self._config))  # JSON is YAML
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    tool("prometheus"),
                    f"--config.file={path}",
                    f"--storage.tsdb.path={self._directory / 'series'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            text = self._log.read_text()
            listening = LISTENING.search(text)
            if listening and "Server is ready to receive web requests" in text:
                self.url = f"http://{listening[1]}"
                return
            time.sleep(POLL_S)
        raise AssertionError(f"Prometheus did not start:\n{self._log.read_text()}")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def values(self, expression: str) -> list[float]:
        """The values of an instant query; raises ValueError with Prometheus' error."""
        result = self._get("query", query=expression)["result"]
        return [float(series["value"][1]) for series in result]

    def has_data(self, expression: str) -> bool:
        """Whether a panel of this expression shows something: NaN is drawn as nothing."""
        return not all(map(isnan, self.values(expression)))

    def rules(self) -> list[dict[str, Any]]:
        """The alert rules, with the health of their last evaluation."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=QUERY_TIMEOUT_S) as answer:  # noqa: S310
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            with error:
                text = json.loads(error.read())["error"]
            raise ValueError(text) from None


def configuration(cluster: str, targets: Iterable[Target], rules: Path | None) -> dict[str, Any]:
    """The document of Prometheus' configuration file."""
    jobs: dict[str, list[dict[str, Any]]] = {}
    for target in targets:
        labels = {
            "cluster": cluster,
            "kubernetes_namespace": "magnetar",
            "kubernetes_pod_name": target.pod,
        }
        jobs.setdefault(target.job, []).append({"targets": [target.address], "labels": labels})
    interval = f"{SCRAPE_INTERVAL_S}s"
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [str(rules)] if rules is not None else [],
        "scrape_configs": [
            {"job_name": job, "honor_labels": True, "static_configs": configs}
            for job, configs in jobs.items()
        ],
    }


def check_rules(path: Path) -> str:
    """What `promtool check rules` prints; raises AssertionError if it finds a fault."""
    command = [tool("promtool"), "check", "rules", str(path)]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def tool(name: str) -> str:
    """The path of a program of Debian's package; fails with the line to type without it."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} not found. Type: {INSTALL}")
    return path
