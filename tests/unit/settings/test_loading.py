"""Settings: their sources, the order of precedence, and the errors for invalid values."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.roles import ROLES
from magnetar.settings.bookie import BookieProcessSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.convert import converted
from magnetar.settings.field import SettingsError, compose, settings_of
from magnetar.settings.load import load, load_standalone, pulsar_keys
from magnetar.settings.metadata_stores import STORE_KEYS
from magnetar.settings.pulsar_switches import SWITCHES
from magnetar.settings.standalone import StandaloneSettings

BROKER_CONF = """\
# As Pulsar ships it: many keys, most of them empty or at their default.
brokerServicePort=16650
 webServicePort = 18080
advertisedAddress=
! another comment
clusterName: blue
allowAutoTopicCreation=\\
  false
"""


def write(tmp_path: Path, text: str, name: str = "broker.conf") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_without_any_source_settings_are_the_defaults() -> None:
    loaded = load_standalone({}, {"PATH": "/bin", "HOME": "/"})
    assert loaded.settings == StandaloneSettings()
    assert not loaded.origins
    assert not loaded.warnings


def test_flags_override_environment_override_file_override_default(tmp_path: Path) -> None:
    config = write(tmp_path, "port=1\nhttp_port=1\nhost=file\n")
    environ = {"MAGNETAR_PORT": "2", "MAGNETAR_HTTP_PORT": "2"}
    loaded = load_standalone({"port": 3}, environ, config)
    settings = loaded.settings
    assert (settings.port, settings.http_port, settings.host) == (3, 2, "file")
    assert settings.cluster_name == "standalone"
    assert loaded.origins == {
        "port": "--port",
        "http_port": "environment variable MAGNETAR_HTTP_PORT",
        "host": f"host in {config} line 3",
    }


def test_broker_conf_is_parsed_like_pulsars(tmp_path: Path) -> None:
    settings = load_standalone({}, {}, write(tmp_path, BROKER_CONF)).settings
    assert (settings.port, settings.http_port, settings.cluster_name) == (16650, 18080, "blue")
    assert settings.advertised_host is None
    assert settings.topics.auto_topic_creation is False


def test_toml_accepts_both_kinds_of_keys_and_typed_values(tmp_path: Path) -> None:
    text = 'brokerServicePort = 16650\nhost = "::1"\nentry_metadata = ["index"]\nwipe = true\n'
    settings = load_standalone({}, {}, write(tmp_path, text, "m.toml")).settings
    assert (settings.port, settings.host, settings.wipe) == (16650, "::1", True)
    assert settings.producers.entry_metadata == ("index",)


def test_pulsars_environment_prefix_is_accepted() -> None:
    environ = {"PULSAR_PREFIX_maxMessageSize": "2048", "PULSAR_PREFIX_advertisedAddress": "h"}
    settings = load_standalone({}, environ).settings
    assert (settings.producers.message_bytes_max, settings.advertised_host) == (2048, "h")


def test_interceptors_have_pulsars_class_names() -> None:
    names = ("AppendIndexMetadataInterceptor", "AppendBrokerTimestampMetadataInterceptor")
    value = ", ".join("org.apache.pulsar.common.intercept." + name for name in names)
    environ = {"PULSAR_PREFIX_brokerEntryMetadataInterceptors": value}
    assert load_standalone({}, environ).settings.producers.entry_metadata == ("index", "timestamp")


def test_a_key_without_effect_causes_one_warning(tmp_path: Path) -> None:
    config = write(tmp_path, "numIOThreads=1\nnumIOThreads=2\ntlsEnabled=\n")
    loaded = load_standalone({}, {"PULSAR_PREFIX_numIOThreads": "3"}, config)
    (warning,) = loaded.warnings
    assert warning.count("numIOThreads") == 1
    assert "tlsEnabled" not in warning


def test_pulsars_own_standalone_conf_loads_with_its_quota_and_without_web_sockets(
    tmp_path: Path,
) -> None:
    text = "webSocketServiceEnabled=true\nbacklogQuotaDefaultLimitGB=10\nmetadataStoreUrl=\n"
    config = write(tmp_path, text + "configurationMetadataStoreUrl=\n")
    loaded = load_standalone({}, {}, config)
    (warning,) = loaded.warnings
    assert warning.startswith(f"webSocketServiceEnabled in {config} line 1: there is no WebSocket")
    assert loaded.settings.policies.backlog_quota_bytes == 10 * 2**30
    off = write(tmp_path, "webSocketServiceEnabled=false\n")
    (warning,) = load_standalone({}, {}, off).warnings
    assert "no effect" in warning


@pytest.mark.parametrize(
    ("gigabytes", "quota"), [("0.5", 2**29), ("0", -1), ("-1", -1), ("-1.0", -1)]
)
def test_a_quota_in_gigabytes_counts_if_it_is_positive(
    tmp_path: Path, gigabytes: str, quota: int
) -> None:
    config = write(tmp_path, f"backlogQuotaDefaultLimitGB={gigabytes}\n")
    assert load_standalone({}, {}, config).settings.policies.backlog_quota_bytes == quota
    environ = {"PULSAR_PREFIX_backlogQuotaDefaultLimitBytes": "7"}
    assert load_standalone({}, environ, config).settings.policies.backlog_quota_bytes == 7


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("backlogQuotaDefaultLimitGB=ten\n", "is 'ten': should be a number"),
        ("backlogQuotaDefaultLimitGB=1e10\n", "allowed: -1 to"),
        ("backlogQuotaDefaultLimitGB=1\nbacklogQuotaDefaultLimitBytes=2\n", "both set"),
    ],
)
def test_a_wrong_quota_in_gigabytes_is_refused(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(SettingsError, match=error) as refused:
        load_standalone({}, {}, write(tmp_path, text))
    assert "backlogQuotaDefaultLimitGB in" in str(refused.value)


STORE = "etcd:http://a:2379,http://b:2379"


@pytest.mark.parametrize("key", STORE_KEYS)
def test_a_second_metadata_store_stops_the_start(tmp_path: Path, key: str) -> None:
    config = write(tmp_path, f"metadataStoreUrl={STORE}\n{key}=zk:c:2181\n")
    for load_role in (load_standalone, partial(load, BrokerProcessSettings)):
        with pytest.raises(SettingsError) as refused:
            load_role({}, {}, config)
        assert f"{key} in {config} line 2 is zk:c:2181" in str(refused.value)
    assert f"{STORE} (metadataStoreUrl)" in str(refused.value)
    with pytest.raises(SettingsError, match=f"PULSAR_PREFIX_{key} is zk:c"):
        load(BrokerProcessSettings, {}, {f"PULSAR_PREFIX_{key}": "zk:c"})


@pytest.mark.parametrize("key", STORE_KEYS)
@pytest.mark.parametrize(
    "same", [STORE, "etcd:http://a:2379,http://b:2379/", f"metadata-store:{STORE}/ledgers", ""]
)
def test_the_same_metadata_store_may_be_named_twice(tmp_path: Path, key: str, same: str) -> None:
    config = write(tmp_path, f"metadataStoreUrl={STORE}\n{key}={same}\n")
    load_standalone({}, {}, config)
    loaded = load(BrokerProcessSettings, {}, {}, config)
    assert loaded.settings.member.metadata_url == STORE
    # `magnetar cluster up` overrides the file's store by a flag.
    load(BrokerProcessSettings, {"metadata_url": "etcd:http://d:1"}, {}, config)


def test_bookkeepers_own_file_loads(tmp_path: Path) -> None:
    config = write(tmp_path, "metadataServiceUri=\nzkServers=localhost:2181\n")
    (warning,) = load(BookieProcessSettings, {}, {}, config).warnings
    assert "zkServers" in warning


REQUIRING = {
    key: next(v for v in ("true", "false") if SWITCHES[key].requires(v)) for key in SWITCHES
} | {
    "brokerServicePortTls": "6651",
    "webServicePortTls": "8443",
}


@pytest.mark.parametrize("key", SWITCHES)
def test_a_key_that_requires_a_missing_feature_stops_the_start(tmp_path: Path, key: str) -> None:
    config = write(tmp_path, f"\n{key}={REQUIRING[key]}\n")
    with pytest.raises(SettingsError) as refused:
        load_standalone({}, {}, config)
    assert f"{key} in {config} line 2" in str(refused.value)
    assert SWITCHES[key].feature in str(refused.value)
    with pytest.raises(SettingsError, match=f"PULSAR_PREFIX_{key}"):
        load_standalone({}, {f"PULSAR_PREFIX_{key}": REQUIRING[key]})


@pytest.mark.parametrize("key", SWITCHES)
def test_a_key_that_requires_nothing_is_accepted(tmp_path: Path, key: str) -> None:
    assert key in pulsar_keys()
    harmless = "true" if REQUIRING[key] == "false" else "false"
    for value in ("", harmless):
        if value == "" or "empty" not in SWITCHES[key].way_out:
            load_standalone({}, {}, write(tmp_path, f"{key}={value}\n"))


def test_toml_values_may_require_a_missing_feature(tmp_path: Path) -> None:
    for text in (
        "tlsEnabled = true",
        'authorizedRoles = ["admin"]',
    ):
        with pytest.raises(SettingsError, match="does not support"):
            load_standalone({}, {}, write(tmp_path, text, "m.toml"))
    off = "tlsEnabled = false\nauthorizedRoles = []\n"
    load_standalone({}, {}, write(tmp_path, off, "m.toml"))


@pytest.mark.parametrize(
    ("environ", "text", "near"),
    [
        ({"MAGNETAR_HTP_PORT": "1"}, "environment variable MAGNETAR_HTP_PORT", "HTTP_PORT"),
        ({"PULSAR_PREFIX_brokerServicePrt": "1"}, "PULSAR_PREFIX_brokerServicePrt", "ServicePort"),
    ],
)
def test_the_error_of_an_unknown_variable_suggests_a_similar_one(
    environ: dict[str, str], text: str, near: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        load_standalone({}, environ)
    assert text in str(raised.value)
    assert near in str(raised.value).partition("did you mean")[2]


def test_the_error_of_an_unknown_key_names_its_line(tmp_path: Path) -> None:
    config = write(tmp_path, "# one\nmaxMesageSize=1\n")
    with pytest.raises(SettingsError, match=r"maxMesageSize in .* line 2; .*maxMessageSize"):
        load_standalone({}, {}, config)


def test_every_invalid_value_is_reported_with_its_origin(tmp_path: Path) -> None:
    config = write(tmp_path, "maxMessageSize=12\nschemaCompatibilityStrategy=SOME\n")
    with pytest.raises(SettingsError) as raised:
        load_standalone({}, {"MAGNETAR_PORT": "ten"}, config)
    for part in ("MAGNETAR_PORT", "line 1", "1024", "line 2", "FULL_TRANSITIVE"):
        assert part in str(raised.value)


def test_contradicting_keys_of_a_source_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="both set port"):
        load_standalone({}, {}, write(tmp_path, "port=1\nbrokerServicePort=2\n"))
    same = write(tmp_path, "port=1\nbrokerServicePort=1\n")
    assert load_standalone({}, {}, same).settings.port == 1


def test_the_last_line_of_a_key_counts(tmp_path: Path) -> None:
    config = write(tmp_path, "brokerServicePort=1\nbrokerServicePort=2\n")
    assert load_standalone({}, {}, config).settings.port == 2


def test_service_variables_of_kubernetes_are_ignored() -> None:
    environ = {
        "MAGNETAR_PORT": "tcp://10.0.0.1:6650",
        "MAGNETAR_SERVICE_HOST": "10.0.0.1",
        "MAGNETAR_SERVICE_PORT_HTTP": "8080",
        "MAGNETAR_PORT_6650_TCP_ADDR": "10.0.0.1",
        "MAGNETAR_BROKER_PORT": "tcp://10.0.0.1:6650",
    }
    assert load_standalone({}, environ).settings == StandaloneSettings()


@pytest.mark.parametrize(
    ("name", "content"),
    [("absent", None), ("bad.toml", b"port = = 1"), ("binary.conf", b"\xff\xfe=1")],
)
def test_the_error_of_an_unreadable_file_names_it(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=name):
        load_standalone({}, {}, path)


@pytest.mark.parametrize(
    "values",
    [
        {"ledger_rollover_min_minutes": 300},
        {"retention_minutes": 5},
        {"retention_size_mb": -1},
        {"port": 65_536},
        {"keep_alive_interval_s": 0},
    ],
)
def test_invalid_settings_are_refused_however_they_are_built(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        compose(StandaloneSettings, **values)


@given(st.data())
def test_the_text_of_a_default_converts_to_the_default(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(sorted(ROLES.values(), key=str)))
    item = data.draw(st.sampled_from(list(settings_of(cls).values())))
    if item.default not in (None, ()):
        text = ",".join(item.default) if isinstance(item.default, tuple) else str(item.default)
        assert converted(item, text) == item.default
        assert type(converted(item, text)) is type(item.default)
    assert converted(item, item.default) == item.default


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.text())))
def test_any_value_is_converted_or_refused(value: object) -> None:
    for item in settings_of(BookieProcessSettings).values():
        try:
            result = converted(item, value)
        except ValueError:
            continue
        assert isinstance(result, str | int | float | bool | Path | tuple | None)


@pytest.mark.parametrize("role", sorted(ROLES))
def test_every_setting_has_a_description_and_unique_keys(role: str) -> None:
    settings = settings_of(ROLES[role]).values()
    keys = [key for setting in settings for key in setting.foreign_keys]
    assert len(keys) == len(set(keys))
    assert set(keys) <= pulsar_keys()
    for setting in settings:
        assert setting.help.endswith("."), setting.name
        assert len(setting.help) <= 140, setting.name
