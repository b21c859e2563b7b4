"""Runs in a pod: tries ports without credentials, and prints what each of them answered.

Takes a JSON list of [host, port] as its argument, and TRUST_FILE from the environment: the
authority that verifies servers, so that a server of another cluster is not mistaken for one of
this. Prints a JSON list of [host, port, attempt, outcome]. An attempt is an HTTP request, a CONNECT
of Pulsar or a HELLO of our bookies; over plain TCP, over TLS, and over TLS with a certificate of an
authority that nobody trusts. Outcomes: `status N`, `command NAME`, `welcome` or `closing` (of a
bookie), `refused` (the handshake or the connection ended without an answer), `silence`, `other`
with the first bytes.
"""

import asyncio
import datetime
import json
import os
import ssl
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.net import messages_v1, protocol_v1
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.encoder import encode_command

TRY_S_MAX = 10.0
SILENCE_S = 2.0
AT_ONCE = 32
PATHS = (
    ("GET", "/"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/health"),
    ("GET", "/status"),
    ("GET", "/status.html"),
    ("GET", "/metrics"),
    ("GET", "/metrics/"),
    ("GET", "/version"),
    ("GET", "/debug/vars"),
    ("GET", "/members"),
    ("GET", "/admin/v2/clusters"),
    ("GET", "/admin/v2/tenants"),
    ("GET", "/admin/v2/brokers/configuration/runtime"),
    ("GET", "/lookup/v2/topic/persistent/public/default/any"),
    ("PUT", "/admin/v2/tenants/intruder"),
    ("GET", "/apis/external.metrics.k8s.io/v1beta1"),
    ("POST", "/v3/kv/range"),
    ("POST", "/v3/auth/authenticate"),
)
WRONG_TOKEN = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."  # noqa: S105 - signed by nobody


def stranger() -> Path:
    """A certificate and key of its own authority, named as the broker that bookies know."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker-admin")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    file = Path(tempfile.mkdtemp()) / "stranger.pem"
    file.write_bytes(
        certificate.public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return file


def context(identity: Path | None = None) -> ssl.SSLContext:
    """Verifies the server's authority, not its name: ports are tried by address."""
    made = ssl.create_default_context(cafile=os.environ["TRUST_FILE"])
    made.check_hostname = False
    if identity is not None:
        made.load_cert_chain(identity)
    return made


def request(method: str, path: str, token: str = "") -> bytes:
    """One HTTP request that asks for the connection's end."""
    lines = [f"{method} {path} HTTP/1.1", "Host: probe", "Connection: close", "Content-Length: 2"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, "", "{}"]).encode()


def connect(token: str = "") -> bytes:
    """A CONNECT without credentials, or with a token, and a lookup right behind it."""
    command = pb.CommandConnect(client_version="probe", protocol_version=21)
    if token:
        command.auth_method_name, command.auth_data = "token", token.encode()
    lookup = pb.CommandLookupTopic(topic="persistent://public/default/any", request_id=1)
    return encode_command("CONNECT", command) + encode_command("LOOKUP", lookup)


def hello() -> bytes:
    """The hello of a bookie's client, which claims to be of the cluster."""
    said = messages_v1.Hello(BookieIdentity("bookie-0", ""), "", "probe")
    return protocol_v1.encode_frame(protocol_v1.HELLO, 0, 0, messages_v1.encode_hello(said))


def attempts(strange: Path) -> Iterator[tuple[str, bytes, ssl.SSLContext | None]]:
    """Names, bytes and TLS of all attempts."""
    for how, tls in (("plain", None), ("tls", context()), ("stranger", context(strange))):
        for method, path in PATHS:
            yield f"{how} {method} {path}", request(method, path), tls
        yield f"{how} wrong token", request("GET", "/admin/v2/clusters", WRONG_TOKEN), tls
        yield f"{how} CONNECT", connect(), tls
        yield f"{how} CONNECT wrong token", connect(WRONG_TOKEN), tls
        yield f"{how} HELLO", hello(), tls


def outcome(answer: bytes) -> str:
    """What an answer says, in a word or two."""
    if not answer:
        return "refused"
    if answer.startswith(b"HTTP/"):
        return f"status {answer.split()[1].decode()}"
    if len(answer) >= protocol_v1.HEAD_BYTES:
        if protocol_v1.MAGIC in answer:
            return "welcome"
        if answer[4] == protocol_v1.CLOSING:
            return "closing"
    if len(answer) > 8:
        size, command_size = struct.unpack_from(">II", answer)
        if 4 <= command_size <= size - 4 and len(answer) >= 8 + command_size:
            command = pb.BaseCommand()
            try:
                command.ParseFromString(answer[8 : 8 + command_size])
            except Exception:  # noqa: BLE001 - of no named class: it is no command then
                return f"other {answer[:40]!r}"
            return f"command {pb.BaseCommand.Type.Name(command.type)}"
    return f"other {answer[:40]!r}"


async def attempt(host: str, port: int, sent: bytes, tls: ssl.SSLContext | None) -> str:
    """The outcome of one attempt."""
    try:
        async with asyncio.timeout(TRY_S_MAX):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                writer.write(sent)
                await writer.drain()
                async with asyncio.timeout(SILENCE_S):
                    return outcome(await reader.read(4096))
            except TimeoutError:
                return "silence"
            finally:
                writer.close()
    except TimeoutError:
        return "silence"
    except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
        return "refused"


async def main() -> None:
    """All attempts on all ports."""
    slots = asyncio.Semaphore(AT_ONCE)
    strange = stranger()

    async def one(
        host: str, port: int, name: str, sent: bytes, tls: ssl.SSLContext | None
    ) -> object:
        async with slots:
            return [host, port, name, await attempt(host, port, sent, tls)]

    print(
        json.dumps(
            await asyncio.gather(
                *(
                    one(host, port, name, sent, tls)
                    for host, port in json.loads(sys.argv[1])
                    for name, sent, tls in attempts(strange)
                )
            )
        )
    )


asyncio.run(main())
