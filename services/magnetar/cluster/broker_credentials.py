"""What a broker presents to the other brokers of its cluster: credentials, and a certificate."""

from dataclasses import replace
from pathlib import Path

from magnetar.security.credentials import Credentials
from magnetar.security.secret import Secret
from magnetar.security.tls.settings import ClientTlsConfig
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import SettingsError


def own_credentials(settings: BrokerProcessSettings) -> Credentials | None:
    """Returns what this broker presents to the other brokers; None while authentication is off.

    Raises SettingsError: without it, the other brokers refuse every request of this one.
    """
    if not settings.security.authentication_enabled:
        return None
    if not settings.security.broker_client_auth_plugin:
        raise SettingsError(
            "authentication is on, so the other brokers of the cluster need this one's "
            "credentials: set broker_client_auth_plugin (brokerClientAuthenticationPlugin) and "
            "broker_client_auth_parameters (brokerClientAuthenticationParameters)"
        )
    parameters = settings.security.broker_client_auth_parameters or Secret("")
    return Credentials.parse(settings.security.broker_client_auth_plugin, parameters)


def client_tls(
    settings: BrokerProcessSettings, credentials: Credentials | None
) -> ClientTlsConfig | None:
    """Returns the TLS of requests to other brokers, with the certificate that the plugin names.

    Raises SettingsError if the plugin `tls` has no certificate, or the settings name another.
    """
    config = settings.broker_tls.client_config(settings.tls)
    if credentials is None or not credentials.uses_certificate:
        return config
    if config is None:
        raise SettingsError(
            "broker_client_auth_plugin (brokerClientAuthenticationPlugin) is tls, so set "
            "broker_client_tls (brokerClientTlsEnabled) to true, too"
        )
    if credentials.certificate_files is not None:
        cert_file, key_file = map(Path, credentials.certificate_files)
        if config.cert_file is not None and (config.cert_file, config.key_file) != (
            cert_file,
            key_file,
        ):
            raise SettingsError(
                "broker_client_cert_file (brokerClientCertificateFilePath) and "
                "broker_client_auth_parameters (brokerClientAuthenticationParameters) name "
                "different certificates"
            )
        return replace(config, cert_file=cert_file, key_file=key_file)
    if config.cert_file is None:
        raise SettingsError(
            "broker_client_auth_plugin (brokerClientAuthenticationPlugin) is tls: name the "
            "certificate by broker_client_cert_file (brokerClientCertificateFilePath)"
        )
    return config
