"""The settings of TLS: ports that are off, files that belong together, and refusals."""

from pathlib import Path

import pytest

from magnetar.settings.bookie import BookieProcessSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import SettingsError, compose
from magnetar.settings.load import load, load_standalone
from magnetar.settings.standalone import StandaloneSettings

FILES = {"tls_cert_file": Path("c.pem"), "tls_key_file": Path("k.pem")}


def conf(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text("\n".join(lines))
    return path


def test_without_settings_nothing_has_tls() -> None:
    standalone, broker, bookie = (
        StandaloneSettings(),
        BrokerProcessSettings(),
        BookieProcessSettings(),
    )
    assert standalone.broker_tls.server_config(standalone.tls) is None
    assert broker.broker_tls.client_config(broker.tls) is None
    assert broker.bookie_client.config(broker.tls) is None
    assert bookie.storage_tls.health_tls(bookie.tls) is None
    assert bookie.bookie_tls == "off"


def test_pulsars_keys(tmp_path: Path) -> None:
    settings = load_standalone(
        {},
        {},
        conf(
            tmp_path,
            "brokerServicePort=",
            "webServicePort=",
            "brokerServicePortTls=6651",
            "webServicePortTls=8443",
            "tlsCertificateFilePath=c.pem",
            "tlsKeyFilePath=k.pem",
            "tlsTrustCertsFilePath=ca.pem",
            "tlsRequireTrustedClientCertOnConnect=true",
            "tlsProtocols=TLSv1.3,TLSv1.2",
            "tlsCiphers=TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,ECDHE-ECDSA-AES128-GCM-SHA256",
            "tlsCertRefreshCheckDurationSec=300",
        ),
    ).settings
    assert (settings.port, settings.http_port) == (None, None)
    assert (settings.broker_tls.port_tls, settings.broker_tls.http_port_tls) == (6651, 8443)
    tls = settings.tls.server_tls()
    assert (tls.cert_file, tls.key_file, tls.trust_file) == (
        Path("c.pem"),
        Path("k.pem"),
        Path("ca.pem"),
    )
    assert tls.require_client_cert
    assert tls.options.refresh_s == 300


@pytest.mark.parametrize("off", ["", "none", "None"])
def test_a_port_is_turned_off_in_a_file_and_by_the_environment(tmp_path: Path, off: str) -> None:
    on = ["brokerServicePortTls=0", "tlsCertificateFilePath=c", "tlsKeyFilePath=k"]
    path = conf(tmp_path, f"brokerServicePort={off}", *on)
    assert load_standalone({}, {}, path).settings.port is None
    variables = {"PULSAR_PREFIX_brokerServicePort": off}
    assert load_standalone({}, variables, conf(tmp_path, *on)).settings.port is None
    assert load_standalone({"port": "none"}, {}, conf(tmp_path, *on)).settings.port is None


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"port_tls": 0}, "tls_cert_file"),
        ({"http_port_tls": 0, "tls_cert_file": Path("c")}, "tls_key_file"),
        ({"tls_cert_file": Path("c")}, "tls_key_file"),
        ({"port": None}, "port_tls"),
        ({"http_port": None}, "http_port_tls"),
        ({"port_tls": 0, **FILES, "tls_require_client_cert": True}, "tls_trust_file"),
        ({"tls_ciphers": ("nonsense",)}, "nonsense"),
        ({"tls_ciphers": ("ALL",)}, "ALL"),
        ({"tls_ciphers": ("TLS_AES_128_GCM_SHA256",)}, "TLS 1.3"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        compose(StandaloneSettings, **settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"broker_client_tls": True}, "http_port_tls"),
        ({"http_port": None, "http_port_tls": 0, **FILES}, "broker_client_tls"),
        ({"bookkeeper_tls_key_file": Path("k")}, "bookkeeper_tls_cert_file"),
    ],
)
def test_brokers_that_could_not_reach_each_other(settings: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        compose(BrokerProcessSettings, **settings)


def test_a_bookie_by_bookkeepers_keys(tmp_path: Path) -> None:
    path = conf(
        tmp_path,
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsCertificatePath=c.pem",
        "tlsKeyFilePath=k.pem",
        "tlsTrustCertsFilePath=ca.pem",
        "tlsClientAuthentication=true",
        "bookkeeperTLSClientAuthentication=true",
        "httpServerTlsEnable=true",
    )
    settings = load(BookieProcessSettings, {}, {}, path).settings
    assert settings.bookie_tls == "required"
    assert settings.tls.server_tls().require_client_cert
    client = settings.bookie_client.config(settings.tls)
    assert client is not None
    assert (client.cert_file, client.trust_file) == (Path("c.pem"), Path("ca.pem"))
    assert client.verify_hostname
    health = settings.storage_tls.health_tls(settings.tls)
    assert health is not None
    assert not health.require_client_cert
    assert health.trust_file is None


def test_a_bookie_with_tls_needs_its_files() -> None:
    for settings in ({"bookie_tls": "optional"}, {"http_tls": True}):
        with pytest.raises(SettingsError, match="tls_cert_file"):
            compose(BookieProcessSettings, **settings)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("tlsEnabledWithKeyStore=true", "keytool"),
        ("tlsKeyStore=a.jks", "openssl pkcs12"),
        ("brokerClientTlsTrustStore=a.jks", "keytool"),
        ("tlsEnabled=true", "brokerServicePortTls"),
        ("webServiceTlsCiphers=X", "tlsCiphers"),
        ("sslFactoryPlugin=com.example.Own", "plugins"),
        ("bookkeeperTLSKeyFileType=JKS", "keytool"),
        ("tlsProtocols=TLSv1.1", "TLSv1.2"),
    ],
)
def test_what_is_not_enforced_stops_the_start(tmp_path: Path, line: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load_standalone({}, {}, conf(tmp_path, line))


def test_the_defaults_of_pulsars_files_are_no_reason_to_stop(tmp_path: Path) -> None:
    path = conf(
        tmp_path,
        "tlsKeyStoreType=JKS",
        "tlsKeyStore=",
        "tlsEnabledWithKeyStore=false",
        "bookkeeperTLSKeyFileType=PEM",
        "bookkeeperTLSProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory",
        "sslFactoryPlugin=org.apache.pulsar.common.util.DefaultPulsarSslFactory",
        "brokerServicePortTls=",
        "webServicePortTls=",
        "tlsProtocols=",
        "tlsCiphers=",
    )
    settings = load_standalone({}, {}, path).settings
    assert settings.broker_tls.server_config(settings.tls) is None
    assert settings.tls.tls_options.protocols == ("TLSv1.2", "TLSv1.3")
