"""The official Python client (which is the C++ client) against a closed standalone."""

import base64
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from tests.security.closed_standalone import (
    ADMIN,
    PASSWORD,
    ClosedStandalone,
    closed_standalone,
)
from tests.support.certificates import Authority

WITHIN_S = 30.0
SEND_TIMEOUT_MS = 3_000
TOPIC = "persistent://public/default/t"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedStandalone]:
    with closed_standalone(tmp_path_factory.mktemp("closed")) as server:
        for role in ("user", "certified"):
            server.grant(role, "produce", "consume")
        yield server


def exchange(client: pulsar.Client, topic: str) -> None:
    """Sends a message and receives it."""
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"hello")
    assert consumer.receive(int(WITHIN_S * 1000)).data() == b"hello"


def test_token(closed: ClosedStandalone) -> None:
    exchange(closed.by_token("user"), f"{TOPIC}-token")


def test_password(closed: ClosedStandalone) -> None:
    exchange(closed.client(pulsar.AuthenticationBasic("user", PASSWORD)), f"{TOPIC}-basic")


def test_certificate(closed: ClosedStandalone) -> None:
    own = closed.ca.issue("certified")
    authentication = pulsar.AuthenticationTLS(str(own.cert), str(own.key))
    exchange(closed.client(authentication, tls=True), f"{TOPIC}-tls")


def test_token_over_tls(closed: ClosedStandalone) -> None:
    authentication = pulsar.AuthenticationToken(closed.token("user"))
    exchange(closed.client(authentication, tls=True), f"{TOPIC}-token-tls")


def by_method(closed: ClosedStandalone, method: str) -> pulsar.Authentication:
    if method == "token":
        return pulsar.AuthenticationToken(closed.token("user"))
    if method == "basic":
        return pulsar.AuthenticationBasic("user", PASSWORD)
    own = closed.ca.issue("certified")
    return pulsar.AuthenticationTLS(str(own.cert), str(own.key))


@pytest.mark.parametrize(
    ("scheme", "method"),
    [
        ("http", "token"),
        ("http", "basic"),
        ("https", "token"),
        ("https", "basic"),
        ("https", "tls"),
    ],
)
def test_look_ups_over_rest(closed: ClosedStandalone, scheme: str, method: str) -> None:
    """A client with a web service URL looks topics up over REST, with the headers of its plugin."""
    tls = scheme == "https"
    url = closed.https_url if tls else closed.process.http_url
    client = closed.client(by_method(closed, method), tls=tls, url=url)
    exchange(client, f"{TOPIC}-{scheme}-{method}")


def test_look_ups_over_rest_with_wrong_credentials(closed: ClosedStandalone) -> None:
    authentication = pulsar.AuthenticationToken(forged(closed))
    client = closed.client(authentication, url=closed.process.http_url, operation_timeout_seconds=2)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"{TOPIC}-forged-rest")


REASONS = {
    "absent": "no provider for the method 'none'",
    "expired": "the token has expired",
    "forged": "the token's signature is wrong",
    "unsigned": "the algorithm 'none'",
    "password": "the user is unknown, or the password is wrong",
    "user": "the user is unknown, or the password is wrong",
}
"""Part of what the log of the broker says about it."""


@pytest.mark.parametrize("kind", REASONS)
def test_wrong_credentials(closed: ClosedStandalone, kind: str) -> None:
    authentication = {
        "absent": lambda: None,
        "expired": lambda: pulsar.AuthenticationToken(closed.token(ADMIN, -60)),
        "forged": lambda: pulsar.AuthenticationToken(forged(closed)),
        "unsigned": lambda: pulsar.AuthenticationToken(unsigned()),
        "password": lambda: pulsar.AuthenticationBasic("user", "wrong"),
        "user": lambda: pulsar.AuthenticationBasic("nobody", PASSWORD),
    }[kind]()
    client = closed.client(authentication, operation_timeout_seconds=2)
    # This client connects again after any answer but CONNECTED, until its operation times out.
    with pytest.raises((pulsar.AuthenticationError, pulsar.ConnectError, pulsar.Timeout)):
        client.create_producer(f"{TOPIC}-{kind}")
    with closed.admin() as http:
        topics = http.get("/admin/v2/persistent/public/default").raise_for_status().json()
    assert f"{TOPIC}-{kind}" not in topics
    assert REASONS[kind] in closed.process.log.read_text()


def forged(closed: ClosedStandalone) -> str:
    head, claims, _ = closed.token(ADMIN).split(".")
    return ".".join((head, claims, closed.token("user").split(".")[2]))


def unsigned() -> str:
    import jwt

    return jwt.encode({"sub": ADMIN}, "", "none")


def test_a_certificate_of_another_authority(closed: ClosedStandalone, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other").issue("certified")
    authentication = pulsar.AuthenticationTLS(str(other.cert), str(other.key))
    client = closed.client(authentication, tls=True)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(TOPIC)


def test_a_role_without_rights(closed: ClosedStandalone) -> None:
    client = closed.by_token("nobody")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(TOPIC)
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe(TOPIC, "s")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_reader(TOPIC, pulsar.MessageId.earliest)
    with pytest.raises(pulsar.AuthorizationError):
        client.get_topic_partitions(TOPIC)


def ends(producer: pulsar.Producer) -> bool:
    """Whether the producer cannot send any more.

    This client knows no fatal error of a producer that was created: it waits for its send timeout.
    """
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        try:
            producer.send(b"x")
        except pulsar.PulsarException:
            return True
        time.sleep(0.01)
    return False


def publishers(closed: ClosedStandalone, local: str) -> list[dict[str, str]]:
    """The producers of a topic, as its statistics show them."""
    with closed.admin() as http:
        stats = http.get(f"/admin/v2/persistent/public/default/{local}/stats")
        attached: list[dict[str, str]] = stats.raise_for_status().json()["publishers"]
        return attached


def test_a_grant_and_its_withdrawal_act_at_once(closed: ClosedStandalone) -> None:
    role, topic = "guest", f"{TOPIC}-guest"
    client = closed.by_token(role)
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)
    closed.grant(role, "produce")
    # The look-up that was refused is not cached by the client.
    producer = client.create_producer(topic, send_timeout_millis=SEND_TIMEOUT_MS)
    producer.send(b"x")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe(topic, "s")
    closed.grant(role)
    assert ends(producer)
    assert publishers(closed, "t-guest") == []
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)


def test_renewed_tokens_keep_the_connection(closed: ClosedStandalone) -> None:
    """Tokens live two seconds; the producer sends for three of their lives."""
    supplied = []

    def supply() -> str:
        supplied.append(time.monotonic())
        return closed.token("user", 2)

    topic = f"{TOPIC}-renewed"
    producer = closed.by_supplier(supply).create_producer(topic)

    def connection() -> str:
        (publisher,) = publishers(closed, "t-renewed")
        return f"{publisher['address']} {publisher['connectedSince']}"

    producer.send(b"first")
    first, before = connection(), len(supplied)
    while len(supplied) < before + 3:
        assert time.monotonic() < supplied[0] + WITHIN_S
        producer.send(b"x")
        time.sleep(0.01)
    producer.send(b"last")
    assert connection() == first


def test_a_token_that_is_not_renewed_ends_the_connection(closed: ClosedStandalone) -> None:
    producer = closed.by_token("user", 2).create_producer(
        f"{TOPIC}-expired", send_timeout_millis=SEND_TIMEOUT_MS
    )
    producer.send(b"x")
    assert ends(producer)
    assert publishers(closed, "t-expired") == []


SHOWING = (
    "/admin/v2/brokers/configuration/runtime",
    "/admin/v2/brokers/configuration/values",
    "/admin/v2/brokers/internal-configuration",
    "/admin/v2/clusters/standalone",
    "/metrics",
    "/status",
)


def test_no_secret_is_in_an_answer_a_file_or_the_list_of_processes(
    closed: ClosedStandalone,
) -> None:
    """The log and the data directory are those of all tests before, with right and wrong ones."""
    token = closed.token(ADMIN)
    secrets = [closed.secret, PASSWORD.encode(), token.encode(), forged(closed).encode()]
    secrets += [base64.b64encode(secret) for secret in secrets]
    pid = closed.process.pid
    shown = {"process list": Path(f"/proc/{pid}/cmdline").read_bytes()}
    with closed.admin() as http:
        for path in SHOWING:
            shown[path] = http.get(path).raise_for_status().content
        query = f"/admin/v2/clusters?token={token}"
        refused = http.get(query, headers={"Authorization": f"Basic {PASSWORD}"})
        assert refused.status_code == 401
        shown[query] = refused.content
    for file in (closed.process.log, *closed.process.data_dir.rglob("*")):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # the server deletes some
            shown[str(file)] = file.read_bytes()
    assert [
        place for place, text in shown.items() if any(secret in text for secret in secrets)
    ] == []
