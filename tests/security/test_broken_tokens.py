"""A token that no header may have, such as a file of two lines, is in no error of any component.

HTTP libraries refuse the header with an error that shows it.
"""

import argparse
import asyncio
import ssl
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.cli import admin_rest
from magnetar.client.auth.token import Token, TokenFile
from magnetar.security.credentials import Credentials
from magnetar.security.fetch import ProviderClient
from magnetar.security.openid.issuers import ApiServer, KubernetesIssuer
from magnetar.security.secret import Secret
from magnetar_operator.admin.access import Access as OperatorAccess
from magnetar_operator.admin.access import ClusterKey
from magnetar_operator.admin.client import AdminClients, Purpose
from magnetar_spark.log.settings import LogSettings

HIDDEN = "eyJhbGciOiJI"
URL = "http://127.0.0.1:9"
"""Nothing listens there."""


def of_commands(file: Path) -> None:
    parser = argparse.ArgumentParser()
    admin_rest.add_flags(parser)
    admin_rest.get(parser.parse_args(["--admin-url", URL, "--token-file", str(file)]), "/x")


def of_brokers(file: Path) -> None:
    asyncio.run(Credentials.parse("token", f"file://{file}").headers())


def of_discovery(file: Path) -> None:
    async def fetch() -> None:
        api = ProviderClient(
            ssl.create_default_context(), connect_timeout_s=5.0, read_timeout_s=5.0
        )
        server = ApiServer(URL, file.parent)
        try:
            await KubernetesIssuer(server, api, None, require_https=False).fetch()
        finally:
            await api.close()

    asyncio.run(fetch())


def of_the_sdk(file: Path) -> None:
    asyncio.run(TokenFile(file).http_headers())


def of_the_sdk_in_clear(file: Path) -> None:
    asyncio.run(Token(file.read_text()).http_headers())


def of_the_operator(file: Path) -> None:
    token = Secret(file.read_bytes())

    async def access(_key: object) -> OperatorAccess:
        return OperatorAccess(token)

    async def ask() -> None:
        clients = AdminClients(access=access)
        try:
            key = ClusterKey("ns", "demo")
            await clients.at(URL, Purpose.CATALOG, key).get("/admin/v2/tenants")
        finally:
            await clients.close()

    asyncio.run(ask())


def of_jobs(file: Path) -> None:
    LogSettings("etcd:http://127.0.0.1:9", token_file=str(file)).admin_headers()


@pytest.mark.parametrize(
    "content", [f"{HIDDEN}\n{HIDDEN}", f"{HIDDEN}\0", f"{HIDDEN}\x7f", f"a\r\n{HIDDEN}: b"]
)
@pytest.mark.parametrize(
    "use",
    [
        of_commands,
        of_brokers,
        of_discovery,
        of_the_sdk,
        of_the_sdk_in_clear,
        of_the_operator,
        of_jobs,
    ],
)
def test_a_broken_token_is_shown_nowhere(
    use: Callable[[Path], None],
    content: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("magnetar_operator.admin.client.BACKOFF_FIRST_S", 0.0)
    monkeypatch.setattr("magnetar_operator.admin.client.BACKOFF_MAX_S", 0.0)
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(Exception, match="one line") as refused:
        use(file)
    shown = "".join(traceback.format_exception(refused.value))
    assert HIDDEN not in shown
    assert HIDDEN not in caplog.text
