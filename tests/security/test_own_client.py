"""Our own client against a closed standalone: credentials, TLS, OAuth 2.0, lookups by HTTP."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.closed_standalone import PASSWORD, ClosedStandalone, closed_standalone
from tests.support import issuer as issuers
from tests.support.certificates import Authority
from tests.support.issuer import TOKEN, Issuer

from magnetar.client import Client, Tls
from magnetar.client.auth import (
    Authentication,
    Basic,
    ClientCertificate,
    OAuth2,
    Token,
    TokenFile,
    TokenSupplier,
)
from magnetar.client.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    CertificateRejected,
    ClientError,
    OperationTimeout,
    TopicNotFound,
)

TOPIC = "persistent://public/default/own"
WITHIN_S = 60.0

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedStandalone]:
    with closed_standalone(tmp_path_factory.mktemp("closed")) as server:
        for role in ("user", "certified"):
            server.grant(role, "produce", "consume")
        yield server


def trusting(closed: ClosedStandalone, **more: object) -> Tls:
    return Tls(trust_certificates_file=str(closed.ca.file), **more)  # type: ignore[arg-type]


async def exchange(client: Client, topic: str) -> None:
    """Sends a message and receives it."""
    async with client.consumer(topic, "s") as consumer, client.producer(topic) as producer:
        await producer.send(b"hello")
        assert (await consumer.receive(WITHIN_S)).value == b"hello"
        assert await client.partitions(topic) == [topic]


def methods(closed: ClosedStandalone, path: Path) -> dict[str, Authentication]:
    own = closed.ca.issue("certified")
    file = path / "token"
    file.write_text(closed.token("user") + "\n")

    async def supply() -> str:
        return closed.token("user")

    return {
        "token": Token(closed.token("user")),
        "token-file": TokenFile(file),
        "token-url": Token(f"file://{file}"),
        "supplier": TokenSupplier(lambda: closed.token("user")),
        "coroutine": TokenSupplier(supply),
        "basic": Basic("user", PASSWORD),
        "certificate": ClientCertificate(own.cert, own.key),
    }


KINDS = ("token", "token-file", "token-url", "supplier", "coroutine", "basic")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("http", [False, True])
async def test_credentials_on_plain_ports(
    closed: ClosedStandalone, tmp_path: Path, kind: str, http: bool
) -> None:
    url = closed.process.http_url if http else closed.process.service_url
    async with Client(url, auth=methods(closed, tmp_path)[kind]) as client:
        await exchange(client, f"{TOPIC}-{kind}-{http}")


@pytest.mark.parametrize("kind", ["token", "basic", "certificate"])
@pytest.mark.parametrize("http", [False, True])
async def test_credentials_on_tls_ports(
    closed: ClosedStandalone, tmp_path: Path, kind: str, http: bool
) -> None:
    url = closed.https_url if http else closed.tls_url
    auth = methods(closed, tmp_path)[kind]
    async with Client(url, auth=auth, tls=trusting(closed)) as client:
        await exchange(client, f"{TOPIC}-tls-{kind}-{http}")
        context = client._context
        assert context is not None
        assert all(key[1].tls for key in context.pool._connections)


@pytest.mark.parametrize("http", [False, True])
async def test_wrong_credentials(closed: ClosedStandalone, http: bool) -> None:
    url = closed.process.http_url if http else closed.process.service_url
    for auth in (
        None,
        Token(closed.token("user", -60)),
        Token(closed.token("user")[:-3] + "abc"),
        Basic("user", "wrong"),
    ):
        async with Client(url, auth=auth) as client:
            with pytest.raises(AuthenticationFailed) as failed:
                await client.producer(TOPIC)
            assert "auth" in str(failed.value)
            assert PASSWORD not in str(failed.value)


async def test_a_role_without_rights(closed: ClosedStandalone) -> None:
    auth = Token(closed.token("nobody"))
    for url in (closed.process.service_url, closed.process.http_url):
        async with Client(url, auth=auth) as client:
            with pytest.raises(AuthorizationFailed, match="Grant the role"):
                await client.producer(TOPIC)


async def test_certificates_that_are_not_accepted(closed: ClosedStandalone, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    port = closed.tls_url.rpartition(":")[2]
    cases = {
        "self-signed": (closed.tls_url, Tls(trust_certificates_file=str(other.file))),
        "https": (closed.https_url, Tls(trust_certificates_file=str(other.file))),
        "hostname": (f"pulsar+ssl://127.1:{port}", trusting(closed)),
    }
    for url, tls in cases.values():
        async with Client(url, auth=Token(closed.token("user")), tls=tls) as client:
            with pytest.raises(CertificateRejected, match="trust_certificates_file"):
                await client.producer(TOPIC)
    for tls in (
        trusting(closed, verify_hostname=False),
        Tls(allow_insecure=True),
    ):
        url = f"pulsar+ssl://127.1:{port}"
        async with Client(url, auth=Token(closed.token("user")), tls=tls) as client:
            with pytest.raises(TopicNotFound):
                await client.partitions(f"{TOPIC}-not-there")


async def test_a_client_certificate_of_another_authority(
    closed: ClosedStandalone, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other").issue("certified")
    auth = ClientCertificate(other.cert, other.key)
    async with Client(
        closed.tls_url, auth=auth, tls=trusting(closed), operation_timeout_s=1.0
    ) as client:
        with pytest.raises((AuthenticationFailed, OperationTimeout)):
            await client.producer(TOPIC)


async def test_renewed_tokens_keep_the_connection(closed: ClosedStandalone) -> None:
    """The broker asks for another token when one expires, and gets one of the same role."""
    supplied: asyncio.Queue[float] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def supply() -> str:
        supplied.put_nowait(loop.time())
        return closed.token("user", 4)

    async with Client(closed.process.service_url, auth=TokenSupplier(supply)) as client:
        producer = await client.producer(f"{TOPIC}-renewed")
        await producer.send(b"1")
        context = client._context
        assert context is not None
        connections = list(context.pool._connections.values())
        while not supplied.empty():
            supplied.get_nowait()
        async with asyncio.timeout(WITHIN_S):
            for _ in range(2):
                await supplied.get()
        await producer.send(b"2")
        assert list(context.pool._connections.values()) == connections
        assert producer.stats.reconnects == 0


# -- OAuth 2.0 -------------------------------------------------------------------------------------


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuers.issuer() as server:
        yield server


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key.json"
    file.write_text(json.dumps({"client_id": "me", "client_secret": "the-secret"}))
    return file


async def test_oauth2(closed: ClosedStandalone, issuer: Issuer, key_file: Path) -> None:
    issuer.answers[TOKEN] = (200, {"access_token": closed.token("user"), "expires_in": 3600})
    parameters = json.dumps(
        {
            "issuerUrl": issuer.url,
            "privateKey": f"file://{key_file}",
            "audience": "us",
            "scope": "s",
        }
    )
    for url in (closed.process.service_url, closed.process.http_url):
        async with Client(url, auth=OAuth2.from_parameters(parameters)) as client:
            await exchange(client, f"{TOPIC}-oauth2")
    posts = [request for request in issuer.received if request.path == TOKEN]
    assert len(posts) == 2
    assert posts[0].form == {
        "grant_type": "client_credentials", "client_id": "me", "client_secret": "the-secret",
        "audience": "us", "scope": "s",
    }  # fmt: skip


async def test_oauth2_renews_early_and_survives_an_outage(issuer: Issuer) -> None:
    auth = OAuth2(issuer.url, client_id="me", client_secret="s", early_refresh=1e-12)  # noqa: S106
    issuer.answers[TOKEN] = (200, {"access_token": "first", "expires_in": 3600})
    first = await asyncio.gather(*(auth.credentials() for _ in range(5)))
    assert set(first) == {b"first"}
    issuer.answers[TOKEN] = (503, {})
    assert await auth.credentials() == b"first"
    issuer.answers[TOKEN] = (200, {"access_token": "second", "expires_in": 3600})
    assert await auth.credentials() == b"second"
    assert await auth.http_headers() == {"Authorization": "Bearer second"}


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ((401, {"error": "invalid_client"}), AuthenticationFailed, "invalid_client"),
        ((200, {}), AuthenticationFailed, "issued no token"),
        ((200, b"["), AuthenticationFailed, "issued no token"),
        ((500, {}), ClientError, "status 500"),
    ],
)
async def test_oauth2_without_a_token(
    issuer: Issuer, answer: tuple[int, object], error: type[ClientError], text: str
) -> None:
    issuer.answers[TOKEN] = answer
    auth = OAuth2(issuer.url, client_id="me", client_secret="the-secret")  # noqa: S106
    with pytest.raises(error, match=text) as failed:
        await auth.credentials()
    assert "the-secret" not in str(failed.value)


@pytest.mark.parametrize("key", ["data:application/json;base64,e30=", "data:,x", "/not/there"])
async def test_oauth2_key_files_that_are_wrong(
    closed: ClosedStandalone, issuer: Issuer, key: str
) -> None:
    """The error comes with the first use, as with the official clients."""
    auth = OAuth2(issuer.url, private_key=key)
    async with Client(closed.process.service_url, auth=auth) as client:
        with pytest.raises(AuthenticationFailed, match="private_key"):
            await client.producer(TOPIC)
