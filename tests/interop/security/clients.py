"""Runs the scenarios with one official client each, and returns what its application sees.

Failures of the network end with the clients' timeouts, so each client runs its scenarios at once.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pulsar
from tests.interop.java_programs import LineProcess

from .credentials import HOST, Credentials, Realm
from .table import PERF_SCENARIOS, Scenario

NAMESPACE: Final = "public/default"
BATCH_TIMEOUT_S: Final = 120.0
COMMAND_TIMEOUT_S: Final = 60.0
SEPARATOR: Final = "\x1e"
Outcomes = dict[str, str]
"""By the name of the scenario: `ok`, or the client's error as text."""


@dataclass(frozen=True, slots=True)
class Server:
    """The ports of a server on loopback."""

    port: int
    tls_port: int
    http_port: int
    https_port: int

    def service_url(self, scenario: Scenario) -> str:
        if scenario.connection == "plain":
            return f"pulsar://{HOST}:{self.port}"
        return f"pulsar+ssl://{HOST}:{self.tls_port}"

    def admin_url(self, scenario: Scenario) -> str:
        if scenario.connection == "plain":
            return f"http://{HOST}:{self.http_port}"
        return f"https://{HOST}:{self.https_port}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A scenario with the addresses, credentials and topic of its client."""

    scenario: Scenario
    credentials: Credentials
    service_url: str
    admin_url: str
    trust: str
    topic: str

    @property
    def parameters(self) -> str:
        return json.dumps(self.credentials.parameters) if self.credentials.plugin else ""


def trials(realm: Realm, server: Server, client: str, scenarios: Iterable[Scenario]) -> list[Trial]:
    """Returns the trials of a client, each with a topic of its own."""
    return [
        Trial(
            scenario,
            realm.credentials(scenario),
            server.service_url(scenario),
            server.admin_url(scenario),
            str(realm.trusted_by(scenario)),
            f"persistent://{NAMESPACE}/{client}-{scenario.name}",
        )
        for scenario in scenarios
    ]


def by_program(process: LineProcess, tried: Sequence[Trial]) -> Outcomes:
    """Runs the trials by a program that produces: one of Java or of Go."""
    requests = []
    for trial in tried:
        fields = {
            "scenario": trial.scenario.name,
            "seconds": str(trial.scenario.timeout_s),
            "url": trial.service_url,
            "plugin": trial.credentials.plugin,
            "parameters": trial.parameters,
            "trust": trial.trust,
            "topic": trial.topic,
        }
        requests.append("\t".join(f"{name}={value}" for name, value in fields.items()))
    answer = process.ask(SEPARATOR.join(requests), BATCH_TIMEOUT_S).strip("\n")
    return dict(_name_and_outcome(part) for part in answer.split(SEPARATOR))


def _name_and_outcome(answer: str) -> tuple[str, str]:
    name, _, outcome = answer.partition("\t")
    return name, outcome


def by_python(tried: Sequence[Trial], log: Path) -> Outcomes:
    """Runs the trials by the Python client."""
    # It keeps the first logger that a process gives it, and writes there until the end.
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(log))

    def outcome(trial: Trial) -> str:
        try:
            _produce(trial, logger)
        except Exception as error:  # noqa: BLE001 - whatever the application would see
            return f"{type(error).__name__}: {error}"
        return "ok"

    with ThreadPoolExecutor(len(tried)) as pool:
        found = pool.map(outcome, tried)
        return {trial.scenario.name: text for trial, text in zip(tried, found, strict=True)}


def _produce(trial: Trial, logger: pulsar.FileLogger) -> None:
    parameters = trial.credentials.parameters
    makers: dict[str, Callable[[], pulsar.Authentication]] = {
        "token": lambda: pulsar.AuthenticationToken(parameters["token"]),
        "basic": lambda: pulsar.AuthenticationBasic(parameters["username"], parameters["password"]),
        "tls": lambda: pulsar.AuthenticationTLS(
            parameters["tlsCertFile"], parameters["tlsKeyFile"]
        ),
        "oauth2": lambda: pulsar.AuthenticationOauth2(trial.parameters),
    }
    made = makers[trial.scenario.method]() if trial.credentials.plugin else None
    client = pulsar.Client(
        trial.service_url,
        authentication=made,
        operation_timeout_seconds=trial.scenario.timeout_s,
        tls_trust_certs_file_path=trial.trust or None,
        tls_validate_hostname=True,
        logger=logger,
    )
    try:
        client.create_producer(trial.topic).send(b"hello")
    finally:
        client.close()


def by_admin(process: LineProcess, tried: Sequence[Trial]) -> Outcomes:
    """Runs `pulsar-admin topics list` of the trials, one after the other."""
    found = {}
    for trial in tried:
        arguments = ["--admin-url", trial.admin_url, *_tool_authentication(trial)]
        if trial.trust:
            arguments += ["--tls-trust-cert-path", trial.trust]
        arguments += ["topics", "list", NAMESPACE]
        answer = json.loads(process.ask(json.dumps(arguments), COMMAND_TIMEOUT_S))
        error = " ".join(answer["err"].split())
        found[trial.scenario.name] = "ok" if answer["code"] == 0 else error
    return found


def by_perf(
    process: LineProcess,
    tried: Sequence[Trial],
    scenarios: Collection[Scenario] = PERF_SCENARIOS,
) -> Outcomes:
    """Runs `pulsar-perf produce` of some of the trials, one after the other."""
    found = {}
    for trial in tried:
        if trial.scenario not in scenarios:
            continue
        arguments = ["produce", "-u", trial.service_url, *_tool_authentication(trial)]
        if trial.trust:
            arguments += ["--trust-cert-file", trial.trust]
        arguments += ["-m", "1", "-r", "100", "--warmup-time", "0", "--exit-on-failure"]
        answer = json.loads(process.ask(json.dumps([*arguments, trial.topic]), COMMAND_TIMEOUT_S))
        errors = [line for line in answer["out"].splitlines() if line.startswith("ERROR")]
        text = " ".join(" ".join(errors).split())
        found[trial.scenario.name] = "ok" if answer["code"] == 0 else text or "no end"
    return found


def _tool_authentication(trial: Trial) -> list[str]:
    if not trial.credentials.plugin:
        return []
    return ["--auth-plugin", trial.credentials.plugin, "--auth-params", trial.parameters]
