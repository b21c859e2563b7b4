"""All scenarios with all clients against one server, stage by stage."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import httpx
from tests.interop.java_programs import LineProcess
from tests.interop.support import wait_until

from . import clients
from .clients import NAMESPACE, Outcomes, Server, Trial
from .credentials import ADMIN, GUEST, HOST, LEAVER, OTHER_HOST, ROLES, Realm
from .programs import Programs
from .table import SCENARIOS, Stage

AT_ONCE: Final = 4
"""Clients that run at the same time; more of them only wait for the processors."""
HTTP_TIMEOUT_S: Final = 20.0


class RunningServer(Protocol):
    """A server with the settings of a realm."""

    @property
    def address(self) -> Server:
        """The ports that it listens on."""

    def apply_certificate(self, host: str) -> None:
        """Returns when the server presents its new certificate, which names this host."""

    def apply_revocation(self) -> None:
        """Returns when the server uses the realm's other files as they are now."""


def run(
    server: RunningServer,
    realm: Realm,
    programs: Programs,
    directory: Path,
    *,
    perf_only: bool = False,
) -> dict[str, Outcomes]:
    """Returns the outcomes by client; with `perf_only`, those of pulsar-perf in every scenario."""
    grant(server.address, realm)
    processes = dict(programs.started(directory))
    found: dict[str, Outcomes] = {name: {} for name in (*processes, "python")}
    tries = _tries(processes, directory / "python.log")
    if perf_only:
        perf = partial(clients.by_perf, processes["pulsar-perf"], scenarios=SCENARIOS)
        tries = {"pulsar-perf": perf}
    try:
        _stage("first", server, realm, tries, found)
        realm.name_server(OTHER_HOST)
        server.apply_certificate(OTHER_HOST)
        _stage("misnamed", server, realm, tries, found)
        realm.name_server(HOST)
        realm.revoke()
        server.apply_revocation()
        _stage("revoked", server, realm, tries, found)
    finally:
        codes = {name: process.close() for name, process in processes.items()}
    assert not any(codes.values()), codes
    return found


def grant(server: Server, realm: Realm) -> None:
    """Grants the roles of the scenarios their actions; grants and revokes those of GUEST."""
    with admin(server, realm) as http:
        for role in (*ROLES.values(), LEAVER, GUEST):
            path = f"/admin/v2/namespaces/{NAMESPACE}/permissions/{role}"
            http.post(path, json=["produce", "consume"]).raise_for_status()
        http.delete(path).raise_for_status()
        wait_until(
            lambda: GUEST not in http.get(path.rpartition("/")[0]).raise_for_status().json(),
            what="the end of a grant",
        )


def admin(server: Server, realm: Realm) -> httpx.Client:
    """Returns a REST client of a super user."""
    headers = {"Authorization": f"Bearer {realm.token(ADMIN)}"}
    url = f"http://{HOST}:{server.http_port}"
    return httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=HTTP_TIMEOUT_S)


Tries = Callable[[list[Trial]], Outcomes]


def _tries(processes: Mapping[str, LineProcess], log: Path) -> dict[str, Tries]:
    """Returns how each client runs trials, the slowest first."""
    tries: dict[str, Tries] = {
        "pulsar-perf": partial(clients.by_perf, processes["pulsar-perf"]),
        "pulsar-admin": partial(clients.by_admin, processes["pulsar-admin"]),
    }
    for name in ("java-4.0", "java-4.2", "go"):
        tries[name] = partial(clients.by_program, processes[name])
    tries["python"] = lambda tried: clients.by_python(tried, log)
    return tries


def _stage(
    stage: Stage,
    server: RunningServer,
    realm: Realm,
    tries: Mapping[str, Tries],
    found: dict[str, Outcomes],
) -> None:
    chosen = [scenario for scenario in SCENARIOS if scenario.stage == stage]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {
            name: pool.submit(run, clients.trials(realm, server.address, name, chosen))
            for name, run in tries.items()
        }
        for name, outcomes in running.items():
            found[name] |= outcomes.result()
