"""Credentials and TLS of commands of administration, against servers that record requests."""

import argparse
import base64
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.support.certificates import Authority

from magnetar.cli import admin_rest


class Recorder(ThreadingHTTPServer):
    """Answers each path with a document, and keeps the headers of requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.documents: dict[str, object] = {"/x": ["done"]}
        self.requests: list[tuple[str, str | None, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Recorder

    def do_GET(self) -> None:  # the name of the library
        self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = self.headers["authorization"], self.headers["x-pulsar-auth-method-name"]
        self.server.requests.append((self.path, *headers))
        body = json.dumps(self.server.documents[self.path]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *arguments: object) -> None:
        """Prints nothing."""


@pytest.fixture
def server() -> Iterator[Recorder]:
    with Recorder() as recorder:
        thread = threading.Thread(target=recorder.serve_forever)
        thread.start()
        yield recorder
        recorder.shutdown()
        thread.join()


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    admin_rest.add_flags(parser)
    return parser.parse_args(arguments)


def test_basic(server: Recorder, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    args = parsed(
        *("--admin-url", server.url, "--user", "u"),
        *("--password-file", str(tmp_path / "password")),
    )
    assert admin_rest.get_json(args, "/x") == ["done"]
    expected = f"Basic {base64.b64encode(b'u:secret').decode()}"
    assert server.requests == [("/x", expected, "basic")]


def test_one_token_of_oauth2_serves_all_requests(server: Recorder, tmp_path: Path) -> None:
    endpoint = {"token_endpoint": f"{server.url}/token"}
    server.documents["/.well-known/openid-configuration"] = endpoint
    server.documents["/token"] = {"access_token": "issued", "expires_in": 3600}
    parameters = {"issuer_url": server.url, "client_id": "c", "client_secret": "s"}
    (tmp_path / "oauth2").write_text(json.dumps(parameters))
    args = parsed("--admin-url", server.url, "--oauth2-file", str(tmp_path / "oauth2"))
    for _ in range(2):
        assert admin_rest.get_json(args, "/x") == ["done"]
    assert server.requests[2:] == [("/x", "Bearer issued", "token")] * 2


def test_variables_and_flags_that_replace_them(
    server: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNETAR_TOKEN", "of-the-environment")
    assert admin_rest.get_json(parsed("--admin-url", server.url), "/x") == ["done"]
    (tmp_path / "token").write_text("of-the-flag")
    args = parsed("--admin-url", server.url, "--token-file", str(tmp_path / "token"))
    assert admin_rest.get_json(args, "/x") == ["done"]
    shown = [authorization for _, authorization, _ in server.requests]
    assert shown == ["Bearer of-the-environment", "Bearer of-the-flag"]


def test_tls(server: Recorder, tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http", "https")
    assert admin_rest.get_json(parsed("--admin-url", url, "--insecure"), "/x") == ["done"]
    with pytest.raises(admin_rest.AdminFailed, match="certificate"):
        admin_rest.get(parsed("--admin-url", url), "/x")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--user", "u"), "--user and --password-file go together"),
        (("--cert-file", "c"), "--cert-file and --key-file go together"),
        (("--oauth2-file", "/nowhere"), "--oauth2-file"),
        (("--cert-file", "/nowhere", "--key-file", "/nowhere"), "TLS"),
        (("--ca-file", "/nowhere"), "TLS"),
    ],
)
def test_refused(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(admin_rest.AdminFailed, match=reason):
        admin_rest.get(parsed("--admin-url", "http://127.0.0.1:9", *arguments), "/x")
