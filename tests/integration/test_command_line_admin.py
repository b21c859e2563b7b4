"""`magnetar tenants`, `namespaces`, `topics` and `subscriptions` on a real standalone."""

import json
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from tests.support.server_process import ServerProcess

from magnetar.cli.main import main

Run = Callable[..., str]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("admin")) as server:
        yield server


@pytest.fixture
def magnetar(
    server: ServerProcess, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs a command, which must end with `code`; returns its stdout, or stderr if it fails."""
    monkeypatch.setenv("MAGNETAR_URL", server.service_url)
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", server.http_url)

    def run(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        try:
            result = main(arguments)
        except SystemExit as ended:
            result = int(ended.code or 0)
        printed = capfd.readouterr()
        assert result == code, printed.err
        return printed.err if code else printed.out

    return run


@pytest.fixture
def namespace(magnetar: Run) -> str:
    tenant = f"t-{uuid4().hex[:8]}"
    magnetar("tenants", "create", tenant, "--admin-roles", "a,b")
    magnetar("namespaces", "create", f"{tenant}/ns", "--bundles", "4")
    return f"{tenant}/ns"


def test_tenants_and_namespaces(magnetar: Run, namespace: str) -> None:
    tenant = namespace.partition("/")[0]
    assert tenant in magnetar("tenants", "list").splitlines()
    shown = json.loads(magnetar("tenants", "show", tenant, "--json"))
    assert shown == {"adminRoles": ["a", "b"], "allowedClusters": ["standalone"]}
    magnetar("tenants", "update", tenant, "--admin-roles", "c")
    assert magnetar("tenants", "show", tenant).splitlines()[0].split() == ["adminRoles", "c"]
    assert "give --admin-roles" in magnetar("tenants", "update", tenant, code=2)
    assert magnetar("namespaces", "list", tenant) == f"{namespace}\n"
    assert namespace in json.loads(magnetar("namespaces", "list", "--json"))
    magnetar("topics", "create", f"{namespace}/x")
    refused = magnetar("namespaces", "delete", namespace, code=1)
    assert "empty" in refused
    magnetar("topics", "delete", f"{namespace}/x")
    magnetar("namespaces", "delete", namespace)
    assert magnetar("tenants", "delete", tenant, "--json") == "{}\n"
    assert "list what exists" in magnetar("tenants", "show", tenant, code=1)


def test_topics_and_their_partitions(magnetar: Run, namespace: str) -> None:
    plain, parts = f"persistent://{namespace}/plain", f"persistent://{namespace}/parts"
    magnetar("topics", "create", plain)
    magnetar("topics", "create", parts, "-p", "2")
    assert "already exists" in magnetar("topics", "create", plain, code=1)
    assert magnetar("topics", "list", namespace).splitlines() == [parts, plain]
    listed = magnetar("topics", "list", namespace, "--partitions").splitlines()
    assert sorted(listed) == [f"{parts}-partition-0", f"{parts}-partition-1", plain]
    assert magnetar("topics", "partitions", parts) == "partitions  2\n"
    magnetar("topics", "partitions", parts, "3")
    assert json.loads(magnetar("topics", "partitions", parts, "--json")) == {"partitions": 3}
    magnetar("produce", parts, "-m", "x", "-n", "9", "--no-batching", "-q")
    shown = magnetar("topics", "stats", parts)
    assert "partitions       3\n" in shown
    assert json.loads(magnetar("topics", "stats", parts, "--json"))["msgInCounter"] == 9
    magnetar("topics", "unload", plain)
    for topic in (plain, parts):
        magnetar("topics", "delete", topic)
    assert magnetar("topics", "list", namespace) == ""


def test_subscriptions_and_their_messages(magnetar: Run, namespace: str) -> None:
    topic = f"persistent://{namespace}/orders"
    magnetar("topics", "create", topic)
    for name in ("a", "b"):
        magnetar("subscriptions", "create", topic, name)
    ids = []
    for value in ("1", "2", "3"):
        out = magnetar("produce", topic, "-m", value, "-k", "k", "-p", "x=y", "--print-ids", "-q")
        ids += out.splitlines()
    rows = magnetar("subscriptions", "list", topic).splitlines()
    assert rows[0].split()[:4] == ["subscription", "type", "consumers", "backlog"]
    assert [row.split()[0] for row in rows[1:]] == ["a", "b"]
    assert json.loads(magnetar("subscriptions", "backlog", topic, "--json")) == {"a": 3, "b": 3}
    peeked = json.loads(magnetar("subscriptions", "peek", topic, "a", "-n", "5", "--json"))
    assert [(item["value"], item["key"], item["properties"]) for item in peeked] == [
        (value, "k", {"x": "y"}) for value in ("1", "2", "3")
    ]
    assert magnetar("subscriptions", "peek", topic, "a").splitlines()[1].split()[1:] == [
        *("k", "x=y", "1"),
    ]

    def backlog() -> int:
        count: int = json.loads(magnetar("subscriptions", "backlog", topic, "--json"))["a"]
        return count

    magnetar("subscriptions", "skip", topic, "a", "1")
    assert backlog() == 2
    magnetar("subscriptions", "reset", topic, "a", "earliest")
    assert backlog() == 3
    magnetar("subscriptions", "reset", topic, "a", ids[1])
    assert backlog() == 2
    magnetar("subscriptions", "reset", topic, "a", "1h")
    assert backlog() == 3
    magnetar("subscriptions", "expire", topic, "a", "1d")
    assert backlog() == 3
    magnetar("subscriptions", "reset", topic, "a", "latest")
    assert backlog() == 0
    assert "give a number of messages, or --all" in magnetar(
        "subscriptions", "skip", topic, "a", code=2
    )
    magnetar("namespaces", "clear-backlog", namespace)
    assert json.loads(magnetar("subscriptions", "stats", topic, "b", "--json"))["msgBacklog"] == 0
    magnetar("subscriptions", "delete", topic, "b")
    assert "has no subscription b" in magnetar("subscriptions", "stats", topic, "b", code=1)


def test_policies(magnetar: Run, namespace: str) -> None:
    def policies(*target: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(magnetar(*target, "--json"))
        return found

    def of_namespace(*words: str) -> str:
        return magnetar("namespaces", words[0], namespace, *words[1:])

    of_namespace("set-policy", "retention", "time=7d", "size=10G")
    of_namespace("set-policy", "messageTTL", "1d")
    of_namespace("set-policy", "deduplication", "on")
    of_namespace("set-policy", "backlogQuota", "size=1G", "policy=consumer_backlog_eviction")
    found = policies("namespaces", "policies", namespace)
    assert found["retention"] == {"retentionTimeInMinutes": 10_080, "retentionSizeInMB": 10_240}
    assert found["messageTTL"] == 86_400
    assert found["deduplication"] is True
    of_namespace("remove-policy", "messageTTL")
    assert "messageTTL" not in policies("namespaces", "policies", namespace)

    topic = f"{namespace}/limited"
    magnetar("topics", "create", topic)
    magnetar("topics", "set-policy", topic, "maxConsumersPerTopic", "3")
    magnetar(
        "topics",
        "set-policy",
        topic,
        "retention",
        '{"retentionTimeInMinutes":-1,"retentionSizeInMB":-1}',
    )
    found = policies("topics", "policies", topic)
    assert found["maxConsumersPerTopic"] == 3
    assert found["retention"] == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}

    wrong = {
        ("colour", "1"): "'colour' is not a policy of a namespace; these are: ",
        ("retention", "colour=1"): "the fields are time, size",
        ("messageTTL", "soon"): "'soon' is not a whole number",
        ("deduplication", "maybe"): "must be true or false",
    }
    for words, reason in wrong.items():
        assert reason in magnetar("namespaces", "set-policy", namespace, *words, code=2)


def test_failures_name_the_remedy(magnetar: Run) -> None:
    unreachable = magnetar("tenants", "list", "--admin-url", "http://127.0.0.1:1", code=1)
    assert "check --admin-url, or MAGNETAR_ADMIN_URL" in unreachable
    assert "is not TENANT/NAMESPACE" in magnetar("topics", "list", "orders", code=2)
    assert "not a position" in magnetar("subscriptions", "reset", "t", "s", "soon", code=2)
    missing = magnetar("subscriptions", "list", "persistent://public/default/missing", code=1)
    assert "list what exists" in missing
