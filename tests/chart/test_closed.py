"""A closed cluster by the chart: nothing is served without TLS, and secrets stay where they are."""

import json
from typing import Any

import pytest
import yaml
from tests.chart.rendering import (
    RELEASE,
    Manifest,
    environment,
    of_kind,
    pods,
    rendered,
    with_values,
)

from magnetar_operator.cluster.manifests.security import wanted_of
from magnetar_operator.security.job import cluster_in

pytestmark = pytest.mark.kube

AUTH: dict[str, Any] = {
    "authentication": {"enabled": True, "jwt": {"roles": ["shop"]}},
    "authorization": {"enabled": True},
}
CLOSED: dict[str, Any] = {
    "tls": {"enabled": True},
    "auth": AUTH,
    "components": {"autorecovery": True, "toolset": True},
}
PLAIN_PORTS = {6650, 8080}
PRIVATE_FIELDS = {"PRIVATEKEY", "NEXTKEY", "next.key"}


@pytest.fixture(scope="module")
def closed() -> tuple[Manifest, ...]:
    return rendered(values=json.dumps(CLOSED))


def container_of(manifests: tuple[Manifest, ...], name: str) -> Manifest:
    spec = next(spec for owner, spec in pods(manifests) if owner == name)
    container: Manifest = spec["containers"][0]
    return container


def test_brokers_have_no_port_without_tls(closed: tuple[Manifest, ...]) -> None:
    broker = container_of(closed, f"Deployment/{RELEASE}-broker")
    assert {port["containerPort"] for port in broker["ports"]} == {6651, 8443}
    variables = environment(broker)
    assert (variables["MAGNETAR_PORT"], variables["MAGNETAR_HTTP_PORT"]) == ("none", "none")
    service = of_kind(closed, "Service")[f"{RELEASE}-broker"]
    assert {port["port"] for port in service["spec"]["ports"]} == {6651, 8443}
    policy = of_kind(closed, "NetworkPolicy")[f"{RELEASE}-broker"]
    (rule,) = policy["spec"]["ingress"]
    assert {port["port"] for port in rule["ports"]} == {"https", "pulsarssl"}
    assert broker["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_plain_ports_stay_if_they_are_wanted() -> None:
    manifests = with_values(tls={"enabled": True, "broker": {"keepPlain": True}}, auth=AUTH)
    service = of_kind(manifests, "Service")[f"{RELEASE}-broker"]
    assert {port["port"] for port in service["spec"]["ports"]} == {6651, 8443, *PLAIN_PORTS}


def test_etcd_requires_certificates_of_clients_and_members(closed: tuple[Manifest, ...]) -> None:
    etcd = container_of(closed, f"StatefulSet/{RELEASE}-etcd")
    arguments = etcd["args"]
    for flag in ("--client-cert-auth=true", "--peer-client-cert-auth=true"):
        assert flag in arguments
    urls = [text for text in arguments if "-urls=" in text]
    plain = [text for text in urls if "http://" in text]
    assert plain == ["--listen-metrics-urls=http://0.0.0.0:2381"], "health only"
    url = environment(container_of(closed, f"Deployment/{RELEASE}-broker"))["MAGNETAR_METADATA_URL"]
    assert url is not None
    assert url.count("https://") == 3


def test_etcd_serves_both_during_an_upgrade() -> None:
    manifests = with_values(tls={"enabled": True, "etcd": {"plain": True, "peers": False}})
    arguments = container_of(manifests, f"StatefulSet/{RELEASE}-etcd")["args"]
    assert "--listen-client-urls=http://0.0.0.0:2379,https://0.0.0.0:2379" in arguments
    assert "--listen-peer-urls=http://0.0.0.0:2380" in arguments
    assert not [text for text in arguments if text.startswith("--peer-")]


def test_no_pod_has_a_key_that_signs(closed: tuple[Manifest, ...]) -> None:
    for owner, spec in pods(closed):
        for volume in spec.get("volumes", ()):
            secret = volume.get("secret", {})
            assert secret.get("secretName") != f"{RELEASE}-ca-tls", owner
            if "token-" in secret.get("secretName", ""):
                keys = {item["key"] for item in secret["items"]}
                assert not keys & PRIVATE_FIELDS, owner
            assert secret.get("defaultMode", 0o440) == 0o440, owner


def test_secrets_are_files_and_no_text_of_the_release(closed: tuple[Manifest, ...]) -> None:
    assert not of_kind(closed, "Secret")
    text = yaml.safe_dump_all(closed)
    assert "secretKeyRef" not in text
    assert "BEGIN" not in text


def test_a_job_issues_what_the_pods_mount_and_may_write_nothing_else(
    closed: tuple[Manifest, ...],
) -> None:
    job = container_of(closed, f"Job/{RELEASE}-secrets-hook")
    variables = {name: value or "" for name, value in environment(job).items()}
    wanted = wanted_of(cluster_in(variables))
    assert wanted is not None
    mounted = {
        volume["secret"]["secretName"]
        for _, spec in pods(closed)
        for volume in spec.get("volumes", ())
        if "secret" in volume
    }
    assert mounted <= set(wanted.secrets)
    assert f"{RELEASE}-token-shop" in wanted.secrets
    for role in ("secrets", "secrets-hook"):
        rules = of_kind(closed, "Role")[f"{RELEASE}-{role}"]["rules"]
        by_name = [rule for rule in rules if rule["resources"] == ["secrets"]]
        assert sorted(by_name[0]["resourceNames"]) == sorted(wanted.secrets)
        assert by_name[0]["verbs"] == ["get", "update"]
        assert [rule["verbs"] for rule in by_name[1:]] == [["create"]]
    assert environment(container_of(closed, f"CronJob/{RELEASE}-secrets")) == environment(job)


def test_the_operator_may_read_the_secrets_of_its_cluster_only() -> None:
    manifests = rendered(values=json.dumps({**CLOSED, "operator": {"enabled": True}}))
    role = of_kind(manifests, "Role")[f"default-{RELEASE}-operator-secrets-0"]
    spec = of_kind(manifests, "MagnetarCluster")[RELEASE]["spec"]
    cluster = cluster_in(
        {
            "MAGNETAR_SECRETS_CLUSTER": RELEASE,
            "MAGNETAR_SECRETS_NAMESPACE": "default",
            "MAGNETAR_SECRETS_SPEC": json.dumps(spec),
        }
    )
    wanted = wanted_of(cluster)
    assert wanted is not None
    assert sorted(role["rules"][0]["resourceNames"]) == sorted(wanted.secrets)
    assert not of_kind(manifests, "CronJob")


def test_the_operator_may_read_the_credentials_of_addresses_that_are_listed() -> None:
    listed = [{"namespace": "shop", "secrets": ["far"]}]
    values = {"operator": {"enabled": True, "adminSecrets": listed}}
    manifests = rendered(values=json.dumps(values))
    name = f"default-{RELEASE}-operator-admin-secrets-0"
    role = of_kind(manifests, "Role")[name]
    assert role["metadata"]["namespace"] == "shop"
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["far"], "verbs": ["get"]}
    ]
    binding = of_kind(manifests, "RoleBinding")[name]
    assert binding["roleRef"]["name"] == name
    assert binding["subjects"][0]["namespace"] == "default"


def test_cert_manager_issues_the_same_names() -> None:
    """By whichever issuer a certificate comes, peers verify the same names."""
    tls = {"enabled": True, "broker": {"dnsNames": ["pulsar.example.org"]}}
    values = {**CLOSED, "tls": tls, "clusterDomain": "cluster.local"}
    own = rendered(values=json.dumps(values))
    job = container_of(own, f"Job/{RELEASE}-secrets-hook")
    wanted = wanted_of(cluster_in({k: v or "" for k, v in environment(job).items()}))
    assert wanted is not None
    assert wanted.certificates is not None
    certs = {"internal_issuer": {"enabled": True}}
    issued = of_kind(rendered(values=json.dumps({**values, "certs": certs})), "Certificate")
    assert issued.pop(f"{RELEASE}-ca")["spec"]["isCA"] is True
    assert len(issued) == len(wanted.certificates.leaves)
    for leaf in wanted.certificates.leaves:
        spec = issued[leaf.secret]["spec"]
        assert spec["secretName"] == leaf.secret
        assert spec["commonName"] == leaf.names.common_name
        assert set(spec.get("dnsNames", ())) == set(leaf.names.dns)
        assert set(spec.get("ipAddresses", ())) == set(leaf.names.addresses)
        assert ("server auth" in spec["usages"]) is leaf.names.is_server
        assert ("client auth" in spec["usages"]) is leaf.names.is_client


ROLES: dict[str, str] = {
    "bookie_member_roles": f"{RELEASE}-broker,{RELEASE}-bookie,{RELEASE}-recovery",
    "bookie_reader_roles": f"{RELEASE}-jobs",
}
INTERNAL: dict[str, Any] = {"internal_issuer": {"enabled": True}}
THEIRS: dict[str, Any] = {"issuers": {"ca": {"name": "theirs"}}}


@pytest.mark.parametrize(
    ("certs", "roles"),
    [({}, ROLES), (INTERNAL, ROLES), (THEIRS, {}), ({"existingSecrets": True}, {})],
    ids=["own", "cert-manager", "another issuer", "brought along"],
)
def test_jobs_only_read_where_the_names_of_certificates_are_known(
    certs: dict[str, Any], roles: dict[str, str]
) -> None:
    """Otherwise bookies would refuse processes whose certificates have other names."""
    tokens = {"authentication": {"enabled": True, "jwt": {"generateSecrets": {"enabled": False}}}}
    manifests = with_values(tls={"enabled": True}, certs=certs, auth=tokens)
    data = of_kind(manifests, "ConfigMap")[f"{RELEASE}-bookie"]["data"]
    names = {f"MAGNETAR_{name.upper()}": value for name, value in roles.items()}
    assert {key: value for key, value in data.items() if "_ROLES" in key} == names
    own = with_values(tls={"enabled": True}, certs=certs, auth=tokens, operator={"enabled": True})
    config = of_kind(own, "MagnetarCluster")[RELEASE]["spec"]["bookie"]["config"]
    # The operator itself adds the roles of certificates that it issues.
    by_chart = roles if certs else {}
    assert {key: value for key, value in config.items() if "_roles" in key} == by_chart


def test_the_roles_at_bookies_can_be_chosen() -> None:
    chosen = {"bookie_member_roles": "a,b"}
    values: dict[str, Any] = {
        "tls": {"enabled": True},
        "certs": THEIRS,
        "bookkeeper": {"configData": chosen},
    }
    data = of_kind(with_values(**values), "ConfigMap")[f"{RELEASE}-bookie"]["data"]
    assert data["MAGNETAR_BOOKIE_MEMBER_ROLES"] == "a,b"
    own = with_values(**values, operator={"enabled": True})
    config = of_kind(own, "MagnetarCluster")[RELEASE]["spec"]["bookie"]["config"]
    assert config == config | chosen


def test_certificates_that_are_brought_along_are_issued_by_nothing() -> None:
    tokens = {"authentication": {"enabled": True, "jwt": {"generateSecrets": {"enabled": False}}}}
    manifests = with_values(tls={"enabled": True}, certs={"existingSecrets": True}, auth=tokens)
    kinds = {each["kind"] for each in manifests}
    assert not kinds & {"Certificate", "Issuer", "CronJob", "Job"}


def test_an_open_cluster_has_nothing_of_it() -> None:
    text = yaml.safe_dump_all(rendered())
    for word in ("/etc/magnetar/tls", "/etc/magnetar/token", "authenticationEnabled", "6651"):
        assert word not in text


def test_metrics_of_brokers_need_a_token_that_prometheus_has(closed: tuple[Manifest, ...]) -> None:
    settings = of_kind(closed, "ConfigMap")[f"{RELEASE}-broker"]["data"]
    assert settings["PULSAR_PREFIX_authenticateMetricsEndpoint"] == "true"
    monitors = of_kind(closed, "PodMonitor")
    (endpoint,) = monitors[f"{RELEASE}-broker"]["spec"]["podMetricsEndpoints"]
    secret = {"name": f"{RELEASE}-token-metrics", "key": "TOKEN"}
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": secret}
    for component in ("bookie", "etcd", "recovery"):
        (other,) = monitors[f"{RELEASE}-{component}"]["spec"]["podMetricsEndpoints"]
        assert "authorization" not in other, component


def test_metrics_of_brokers_may_stay_open() -> None:
    broker = {"configData": {"authenticateMetricsEndpoint": "false"}}
    settings = of_kind(with_values(**CLOSED, broker=broker), "ConfigMap")[f"{RELEASE}-broker"]
    assert settings["data"]["PULSAR_PREFIX_authenticateMetricsEndpoint"] == "false"


def test_tools_have_the_certificate_and_token_of_their_own(closed: tuple[Manifest, ...]) -> None:
    container = container_of(closed, f"StatefulSet/{RELEASE}-toolset")
    variables = environment(container)
    paths = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert variables["MAGNETAR_BOOKKEEPER_TLS"] == "true"
    assert variables["PULSAR_CLIENT_CONF"] == "/etc/magnetar/client/client.conf"
    text = of_kind(closed, "ConfigMap")[f"{RELEASE}-toolset"]["data"]["client.conf"]
    given = dict(line.split("=", 1) for line in text.splitlines())
    assert given["webServiceUrl"].startswith("https://")
    assert given["brokerServiceUrl"].startswith("pulsar+ssl://")
    files = [given["tlsTrustCertsFilePath"], given["authParams"].removeprefix("file://")]
    files += [value or "" for name, value in variables.items() if name.endswith("_FILE")]
    assert {path.rpartition("/")[0] for path in files} <= paths


def test_tools_of_an_open_cluster_have_addresses_only() -> None:
    manifests = with_values(components={"toolset": True})
    text = of_kind(manifests, "ConfigMap")[f"{RELEASE}-toolset"]["data"]["client.conf"]
    assert [line.partition("=")[0] for line in text.splitlines()] == [
        "webServiceUrl",
        "brokerServiceUrl",
    ]
