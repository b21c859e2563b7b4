"""The credentials and the certificate of a broker's requests to other brokers."""

from pathlib import Path
from typing import Any

import pytest

from magnetar.cluster.broker_credentials import client_tls, own_credentials
from magnetar.security.secret import Secret
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import SettingsError, compose

FILES = Secret("tlsCertFile:/a.pem,tlsKeyFile:/a.key")


def settings(**changes: Any) -> BrokerProcessSettings:
    if changes.get("broker_client_tls"):
        ports = {"tls_cert_file": Path("/s.pem"), "tls_key_file": Path("/s.key")}
        changes = {"http_port_tls": 0, **ports, **changes}
    return compose(
        BrokerProcessSettings,
        authentication_enabled=True,
        authentication_providers=("tls",),
        **changes,
    )


def test_an_open_broker_presents_nothing() -> None:
    assert own_credentials(BrokerProcessSettings()) is None
    assert client_tls(BrokerProcessSettings(), None) is None


def test_a_broker_with_authentication_needs_credentials() -> None:
    with pytest.raises(SettingsError, match="brokerClientAuthenticationPlugin"):
        own_credentials(settings())


def test_a_token_needs_no_certificate() -> None:
    with_token = settings(
        broker_client_auth_plugin="token", broker_client_auth_parameters=Secret("token:abc")
    )
    assert client_tls(with_token, own_credentials(with_token)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"broker_client_auth_parameters": FILES},
        {"broker_client_cert_file": Path("/a.pem"), "broker_client_key_file": Path("/a.key")},
        {
            "broker_client_auth_parameters": FILES,
            "broker_client_cert_file": Path("/a.pem"),
            "broker_client_key_file": Path("/a.key"),
        },
    ],
)
def test_the_certificate_is_that_of_either_setting(changes: dict[str, Any]) -> None:
    own = settings(broker_client_auth_plugin="tls", broker_client_tls=True, **changes)
    config = client_tls(own, own_credentials(own))
    assert config is not None
    assert (config.cert_file, config.key_file) == (Path("/a.pem"), Path("/a.key"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"broker_client_auth_parameters": FILES}, "brokerClientTlsEnabled"),
        ({"broker_client_tls": True}, "brokerClientCertificateFilePath"),
        (
            {
                "broker_client_tls": True,
                "broker_client_auth_parameters": FILES,
                "broker_client_cert_file": Path("/b.pem"),
                "broker_client_key_file": Path("/b.key"),
            },
            "different certificates",
        ),
    ],
)
def test_the_plugin_tls_needs_one_certificate(changes: dict[str, Any], reason: str) -> None:
    own = settings(broker_client_auth_plugin="tls", **changes)
    with pytest.raises(SettingsError, match=reason):
        client_tls(own, own_credentials(own))
