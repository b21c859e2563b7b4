"""An OpenID Connect issuer and OAuth 2.0 server on loopback: a real HTTP server in a thread.

`answers` maps a path to a status and a document; `{issuer}` in a text of a document is the server's
URL. Requests are recorded with their headers and forms.
"""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl

from tests.support.certificates import HOSTS, Authority

METADATA: Final = "/.well-known/openid-configuration"
KEYS: Final = "/keys"
TOKEN: Final = "/token"  # noqa: S105 (a path)


@dataclass
class Received:
    """A request that the server got."""

    method: str
    path: str
    headers: dict[str, str]
    form: dict[str, str]


@dataclass
class Issuer:
    """The answers of a server, and what it was asked."""

    url: str = ""
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    stalled: threading.Event | None = None
    """While this is set to an event, answers wait for it."""

    def __post_init__(self) -> None:
        metadata = {
            "issuer": "{issuer}",
            "jwks_uri": "{issuer}" + KEYS,
            "token_endpoint": "{issuer}" + TOKEN,
        }
        self.answers[METADATA] = (200, metadata)

    def publish(self, *keys: dict[str, Any]) -> None:
        """Publishes these JSON web keys instead of the previous."""
        self.answers[KEYS] = (200, {"keys": list(keys)})

    def paths(self) -> list[str]:
        return [request.path for request in self.received]

    def body(self, path: str) -> tuple[int, bytes]:
        status, document = self.answers.get(path, (404, {}))
        if isinstance(document, bytes):
            return status, document
        return status, json.dumps(document).replace("{issuer}", self.url).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    issuer: Issuer

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        self._answer(dict(parse_qsl(self.rfile.read(size).decode())))

    def _answer(self, form: dict[str, str]) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.issuer.received.append(Received(self.command, self.path, headers, form))
        if self.issuer.stalled is not None:
            self.issuer.stalled.wait(30)
        status, body = self.issuer.body(self.path)
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", self.issuer.url + "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Prints nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: clients of these tests go away, or refuse the certificate."""


def server_context(authority: Authority, hosts: tuple[str, ...] = HOSTS) -> ssl.SSLContext:
    """A context for https with a certificate for the hosts; it asks clients for theirs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = authority.issue("issuer", hosts)
    context.load_cert_chain(files.cert, files.key)
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@contextmanager
def issuer(context: ssl.SSLContext | None = None) -> Iterator[Issuer]:
    """Runs a server on a free port of loopback; https with a context."""
    state = Issuer()
    handler = type("Handler", (_Handler,), {"issuer": state})
    server = _Server(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if context is None else "https"
    state.url = f"{scheme}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="issuer")
    thread.start()
    try:
        yield state
    finally:
        if state.stalled is not None:
            state.stalled.set()
        server.shutdown()
        thread.join()
        server.server_close()
