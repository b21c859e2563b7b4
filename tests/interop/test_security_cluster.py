"""Two brokers that authenticate clients and each other by tokens, with Java's client and tool.

A client knows one broker. It reaches the topics of the other by redirects of lookups and of REST,
and by requests between the brokers, which have a token of their own.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import jwt
import pytest
from tests.support.cluster_processes import brokers, running_cluster

from magnetar.cluster.local.cluster import LocalCluster

from .java_programs import HERE, JAVA_TEST_TIMEOUT_S, JavaPrograms, LineProcess, compiled, jars
from .security import clients, programs
from .security.clients import NAMESPACE, Trial
from .security.credentials import Credentials
from .security.table import Scenario

KEY: Final = b"the key of a test's tokens, which has more than 32 bytes"
ADMIN, BROKER, SHOP, GUEST = "admin", "broker", "shop", "guest"
PARTITIONS: Final = 8
TOPIC: Final = f"persistent://{NAMESPACE}/spread"
PATH: Final = f"/admin/v2/persistent/{NAMESPACE}/spread"
HTTP_TIMEOUT_S: Final = 30.0
PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S)

Run = Callable[..., dict[str, Any]]


def token(role: str) -> str:
    return jwt.encode({"sub": role}, KEY, "HS256")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("closed")
    key, own = directory / "secret.key", directory / "broker.token"
    key.write_bytes(KEY)
    own.write_text(token(BROKER))
    before = request.session.testsfailed
    with running_cluster(
        directory,
        bookies=1,
        brokers=2,
        failed=lambda: request.session.testsfailed > before,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        authentication_enabled=True,
        authentication_providers="token",
        token_secret_key=f"file://{key}",
        authorization_enabled=True,
        superuser_roles=f"{ADMIN},{BROKER}",
        broker_client_auth_plugin="token",
        broker_client_auth_parameters=f"file://{own}",
    ) as made:
        with rest(made, 0, ADMIN) as http:
            grants = f"/admin/v2/namespaces/{NAMESPACE}/permissions/{SHOP}"
            http.post(grants, json=["produce", "consume"]).raise_for_status()
            http.put(f"{PATH}/partitions", json=PARTITIONS).raise_for_status()
        yield made


def rest(cluster: LocalCluster, number: int, role: str | None) -> httpx.Client:
    """A REST client of one broker, which does not follow redirects."""
    return httpx.Client(
        base_url=brokers(cluster)[number].http_url,
        headers={} if role is None else {"Authorization": f"Bearer {token(role)}"},
        trust_env=False,
        timeout=HTTP_TIMEOUT_S,
    )


def redirected(cluster: LocalCluster, path: str) -> list[tuple[int, str]]:
    """The partitions that broker 0 does not own, and the address that it names for each."""
    found = []
    with rest(cluster, 0, ADMIN) as http:
        for number in range(PARTITIONS):
            answer = http.get(f"{PATH}-partition-{number}{path}")
            if answer.status_code == 307:
                found.append((number, answer.headers["location"]))
            else:
                assert answer.status_code == 200, answer.text
    return found


@pytest.fixture(scope="module")
def produced(
    cluster: LocalCluster, java: JavaPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Java's outcomes for each partition with the role that may, and for one that may not.

    All clients know broker 0 only.
    """
    main = java.command(compiled(HERE / "clients", jars("client"), "4.2"), programs.MAIN)
    process = LineProcess(main, tmp_path_factory.mktemp("java") / "client.log")
    service_url = f"pulsar://{brokers(cluster)[0].address}"

    def trial(role: str, case: str, partition: int) -> Trial:
        scenario = Scenario("token", f"{case}-{partition}", "plain")
        credentials = Credentials(PLUGIN, {"token": token(role)})
        topic = f"{TOPIC}-partition-{partition}"
        return Trial(scenario, credentials, service_url, "", "", topic)

    tried = [trial(SHOP, "right", number) for number in range(PARTITIONS)]
    tried += [trial(GUEST, "ungranted", number) for number in range(PARTITIONS)]
    outcomes = clients.by_program(process, tried)
    yield outcomes
    process.close()


@pytest.fixture(scope="module")
def run(
    cluster: LocalCluster, java: JavaPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    """Runs a command of `pulsar-admin` against broker 0 as a role."""
    directory: Path = tmp_path_factory.mktemp("pulsar-admin")
    conf = directory / "client.conf"
    conf.write_text("")
    process = LineProcess(java.command(java.tools, "AdminRunner", str(conf)), directory / "jvm.log")

    def run_command(role: str, *arguments: str) -> dict[str, Any]:
        common = ["--admin-url", brokers(cluster)[0].http_url, "--auth-plugin", PLUGIN]
        line = json.dumps([*common, "--auth-params", f"token:{token(role)}", *arguments])
        answer: dict[str, Any] = json.loads(process.ask(line, clients.COMMAND_TIMEOUT_S))
        printed = answer["out"].splitlines()
        return {**answer, "out": "\n".join(x for x in printed if not x.startswith("Exit code is"))}

    yield run_command
    process.close()


def test_lookups_lead_a_client_with_a_token_to_both_brokers(
    cluster: LocalCluster, produced: dict[str, str]
) -> None:
    right = {name: outcome for name, outcome in produced.items() if "right" in name}
    assert len(right) == PARTITIONS
    assert set(right.values()) == {"ok"}
    assert 0 < len(redirected(cluster, "/stats")) < PARTITIONS


def test_neither_broker_serves_a_role_without_grants(produced: dict[str, str]) -> None:
    refused = [outcome for name, outcome in produced.items() if "ungranted" in name]
    assert len(refused) == PARTITIONS
    assert all(outcome.startswith("AuthorizationException") for outcome in refused), refused


def test_a_redirect_names_the_owner_to_permitted_roles_only(
    cluster: LocalCluster, produced: dict[str, str]
) -> None:
    number, location = redirected(cluster, "/stats")[0]
    path = f"{PATH}-partition-{number}/stats"
    assert location.startswith(brokers(cluster)[1].http_url)
    with httpx.Client(trust_env=False, timeout=HTTP_TIMEOUT_S) as http:
        headers = {"Authorization": f"Bearer {token(SHOP)}"}
        assert http.get(location, headers=headers).status_code == 200
        assert http.get(location).status_code == 401
    for role in (None, GUEST):
        with rest(cluster, 0, role) as http:
            answer = http.get(path)
            assert answer.status_code == 401
            assert "location" not in answer.headers


def test_brokers_sum_up_for_the_caller_and_not_for_themselves(
    cluster: LocalCluster, produced: dict[str, str]
) -> None:
    with rest(cluster, 0, SHOP) as http:
        stats = http.get(f"{PATH}/partitioned-stats").json()
        assert stats["msgInCounter"] == PARTITIONS
        assert len(stats["partitions"]) == PARTITIONS
    with rest(cluster, 0, GUEST) as http:
        assert http.get(f"{PATH}/partitioned-stats").status_code == 401


def test_only_a_broker_may_act_for_other_roles(cluster: LocalCluster) -> None:
    for role, status in ((SHOP, 401), (GUEST, 401), (BROKER, 200)):
        with rest(cluster, 1, role) as http:
            answer = http.get("/admin/v2/tenants", headers={"X-Magnetar-Role": ADMIN})
            assert answer.status_code == status, answer.text
    with rest(cluster, 1, BROKER) as http:
        answer = http.get("/admin/v2/tenants", headers={"X-Magnetar-Role": SHOP})
        assert answer.status_code == 401, answer.text


def test_pulsar_admin_follows_redirects_with_its_token(
    cluster: LocalCluster, produced: dict[str, str], run: Run
) -> None:
    others = {number for number, _ in redirected(cluster, "/stats")}
    owned = next(number for number in range(PARTITIONS) if number not in others)
    for number in (owned, min(others)):
        answer = run(SHOP, "topics", "stats", f"{TOPIC}-partition-{number}")
        assert answer["code"] == 0, answer["err"]
        assert json.loads(answer["out"])["msgInCounter"] == 1
        refused = run(GUEST, "topics", "stats", f"{TOPIC}-partition-{number}")
        assert refused["code"] == 1
        assert "Unauthorized to validateTopicOperation" in refused["err"]


def test_pulsar_admin_changes_what_the_other_broker_owns(
    cluster: LocalCluster, produced: dict[str, str], run: Run
) -> None:
    number, _ = redirected(cluster, "/stats")[0]
    topic = f"{TOPIC}-partition-{number}"
    created = run(SHOP, "topics", "create-subscription", "-s", "late", topic)
    assert created["code"] == 0, created["err"]
    unloaded = run(SHOP, "topics", "unload", topic)
    assert unloaded["code"] == 1
    assert "Unauthorized" in unloaded["err"]
    assert run(ADMIN, "topics", "unload", topic)["code"] == 0
