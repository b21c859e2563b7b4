"""Fixtures of pytest for programs that use Magnetar; docs/use/testing.md describes them.

The plugin is loaded by every pytest that finds `magnetar`, so it imports nothing until a
fixture is used.
"""

import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from magnetar.client.sync import Client
    from magnetar.testing.server import MagnetarServer

TENANT: Final = "pytest"
FOLDER: Final = "magnetar-server"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the setting `magnetar_environment`."""
    parser.addini(
        "magnetar_environment",
        "settings of the server of magnetar_server: lines of MAGNETAR_NAME=VALUE",
        type="linelist",
    )


def environment_of(lines: list[str]) -> dict[str, str]:
    """Returns the settings of lines; raises UsageError."""
    settings = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals or not name.strip().startswith("MAGNETAR_"):
            raise pytest.UsageError(
                f"magnetar_environment: {line!r} is not of the form MAGNETAR_NAME=VALUE"
            )
        settings[name.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def magnetar_server(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[MagnetarServer]":
    """A standalone server: one for the whole run, also with pytest-xdist."""
    from magnetar.testing.server import ServerFailed, shared_server

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of the run
    try:
        settings = environment_of(pytestconfig.getini("magnetar_environment"))
        with shared_server(folder / FOLDER, settings) as server:
            server.put(f"/admin/v2/tenants/{TENANT}", {"allowedClusters": ["standalone"]})
            yield server
    except ServerFailed as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def magnetar_namespace(magnetar_server: "MagnetarServer") -> str:
    """A fresh namespace, `TENANT/NAMESPACE`."""
    namespace = f"{TENANT}/{uuid.uuid4().hex}"
    magnetar_server.put(f"/admin/v2/namespaces/{namespace}")
    return namespace


@pytest.fixture
def magnetar_topic(magnetar_namespace: str) -> str:
    """The name of a topic in a fresh namespace; the first use creates it."""
    return f"persistent://{magnetar_namespace}/topic"


@pytest.fixture
def magnetar_client(magnetar_server: "MagnetarServer") -> "Iterator[Client]":
    """A blocking client, which is closed after the test."""
    from magnetar.client.sync import Client

    with Client(magnetar_server.service_url) as client:
        yield client
