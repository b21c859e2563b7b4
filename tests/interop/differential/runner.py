"""Runs many scenarios at once on one server, each in a namespace of its own."""

import contextlib
import http.client
import itertools
import queue
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
from tests.interop.go_programs import prepare_go
from tests.interop.support import ServerAddress

from .driver import Run
from .rest import Rest
from .steps import Scenario, Step

WORKERS = 24
TENANT = "differential"
OPERATION_TIMEOUT_S = 60
# A client in C++ tries again until then if automatic subscriptions are forbidden.
REFUSED_TIMEOUT_S = 10

GoOn = Callable[[Step, Any, Any], bool]
Outcome = list[Any] | BaseException


def outcomes(
    server: ServerAddress,
    scenarios: Iterable[Scenario],
    log: Path,
    *,
    expected: dict[int, list[Any]] | None = None,
    go_on: Callable[[Scenario], GoOn] | None = None,
    workers: int = WORKERS,
) -> dict[int, Outcome]:
    """Returns the observations of each seed, or the error that ended its scenario."""
    waiting: queue.SimpleQueue[Scenario] = queue.SimpleQueue()
    many = list(scenarios)
    for scenario in many:
        waiting.put(scenario)
    if any(each.needs_go() for each in many):
        prepare_go("differential")  # once, not by each of the threads
    requests = Rest(server.http_url)
    clusters = requests.ask("GET", "clusters").document()
    requests.ask("PUT", f"tenants/{TENANT}", {"adminRoles": [], "allowedClusters": clusters})
    requests.close()
    found: dict[int, Outcome] = {}
    prefix, numbers = uuid.uuid4().hex[:8], itertools.count()

    def work() -> None:
        while True:
            try:
                scenario = waiting.get_nowait()
            except queue.Empty:
                return
            namespace = f"{TENANT}/s{scenario.seed}-{prefix}{next(numbers)}"
            wanted = None if expected is None else expected[scenario.seed]
            judge = go_on(scenario) if go_on else _always
            try:
                with _connected(server, log, _timeout_s(wanted)) as (client, rest):
                    run = Run(client, server.service_url, rest, namespace)
                    found[scenario.seed] = _run(run, scenario, wanted, judge)
            except Exception as error:  # noqa: BLE001 - the outcome of this seed
                found[scenario.seed] = error

    threads = [threading.Thread(target=work, name=f"worker-{n}") for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(sorted(found.items()))


def _always(*_: object) -> bool:
    return True


def _timeout_s(expected: list[Any] | None) -> int:
    return REFUSED_TIMEOUT_S if {"error": "Timeout"} in (expected or []) else OPERATION_TIMEOUT_S


@contextmanager
def _connected(
    server: ServerAddress, log: Path, timeout_s: int
) -> Iterator[tuple[pulsar.Client, Rest]]:
    rest = Rest(server.http_url)
    client = pulsar.Client(
        server.service_url,
        operation_timeout_seconds=timeout_s,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log)),
    )
    try:
        yield client, rest
    finally:
        client.close()
        rest.close()


def _run(run: Run, scenario: Scenario, expected: list[Any] | None, go_on: GoOn) -> list[Any]:
    namespace = run.namespace
    made = run.rest.ask("PUT", f"namespaces/{namespace}", {"bundles": {"numBundles": 1}})
    if made.status != 204:
        raise RuntimeError(f"namespace {namespace}: {made.status} {made.body!r}")
    try:
        return run.observations(scenario, expected, go_on)
    finally:
        # What stays is in the way of nobody, and no part of what was observed.
        with contextlib.suppress(OSError, http.client.HTTPException):
            _cleared(run.rest, namespace)


def _cleared(rest: Rest, namespace: str) -> None:
    """Deletes what the scenario left, so that a shared server keeps nothing of it."""
    for domain, kind in itertools.product(("persistent", "non-persistent"), ("/partitioned", "")):
        topics = rest.ask("GET", f"{domain}/{namespace}{kind}").document()
        for topic in topics if isinstance(topics, list) else []:
            path = topic.replace("://", "/") + ("/partitions" if kind else "")
            rest.ask("DELETE", f"{path}?force=true")
    rest.ask("DELETE", f"namespaces/{namespace}")
