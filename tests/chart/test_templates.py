"""What the chart makes: taken by a real API server, safe, and as its values say."""

import json
import re
from typing import Any

import pytest
import yaml
from tests.chart.rendering import (
    CHART,
    EXAMPLES,
    RELEASE,
    environment,
    helm,
    of_kind,
    pods,
    rendered,
    with_values,
)
from tests.support.kube import Tool

pytestmark = [pytest.mark.kube, pytest.mark.timeout(180)]

EVERYTHING = json.dumps(
    {
        "operator": {"enabled": True, "cluster": False},
        "components": {"autorecovery": True, "toolset": True},
        "alerts": {"enabled": True},
        "broker": {"autoscaling": {"enabled": True}},
        "images": {"imagePullSecrets": ["pull"]},
        "metadataPrefix": "/magnetar/x",
        "networkPolicy": {"clients": [{"namespaceSelector": {}}]},
    }
)
CLOSED = json.dumps(
    {
        "components": {"autorecovery": True, "toolset": True},
        "tls": {"enabled": True},
        "auth": {
            "authentication": {"enabled": True, "jwt": {"roles": ["shop"]}},
            "authorization": {"enabled": True},
        },
    }
)
CLOSED_BY_OPERATOR = json.dumps({**json.loads(CLOSED), "operator": {"enabled": True}})
FOREIGN = {"PodMonitor", "PrometheusRule"}
"""Kinds of Prometheus' operator, which no cluster for tests has."""
INFORMATION = re.compile(r"I\d{4} ")


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_pass_lint(example: str) -> None:
    helm()("lint", "--strict", CHART, "-f", EXAMPLES[example])


@pytest.mark.parametrize("example", ["", *EXAMPLES])
def test_an_api_server_takes_them(example: str, kubectl: Tool, crds: list[str]) -> None:
    taken_by_server(kubectl, rendered(example))


@pytest.mark.parametrize("values", [EVERYTHING, CLOSED, CLOSED_BY_OPERATOR])
def test_an_api_server_takes_everything(values: str, kubectl: Tool, crds: list[str]) -> None:
    taken_by_server(kubectl, rendered(values=values))


def taken_by_server(kubectl: Tool, manifests: tuple[dict[str, Any], ...]) -> None:
    """Warnings count as refusals: a field that the server drops is one that does nothing.

    That kubectl itself was slow (klog's lines of information) is none.
    """
    text = yaml.safe_dump_all(each for each in manifests if each["kind"] not in FOREIGN)
    done = kubectl.run(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text, timeout_s=100
    )
    said = [line for line in done.stderr.splitlines() if not INFORMATION.match(line)]
    assert (done.returncode, said) == (0, []), done.stdout + done.stderr


@pytest.mark.parametrize("example", ["", *EXAMPLES, "everything", "closed", "closed by operator"])
def test_pods_are_secure(example: str) -> None:
    named = {"everything": EVERYTHING, "closed": CLOSED, "closed by operator": CLOSED_BY_OPERATOR}
    manifests = rendered(values=named[example]) if example in named else rendered(example)
    talks_to_kubernetes = {
        f"Deployment/{RELEASE}-operator",
        f"Job/{RELEASE}-crds",
        f"Job/{RELEASE}-secrets-hook",
        f"CronJob/{RELEASE}-secrets",
    }
    for name, spec in pods(manifests):
        token = name in talks_to_kubernetes
        assert spec["automountServiceAccountToken"] is token, name
        assert spec["enableServiceLinks"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert (context["runAsUser"], context["runAsGroup"]) == (10000, 10000), name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
        assert not any("hostPath" in volume for volume in spec.get("volumes", ())), name
    assert not of_kind(manifests, "Secret")


def test_only_the_operator_has_rights() -> None:
    assert not [each for each in rendered() if each["apiVersion"].startswith("rbac.")]


@pytest.mark.parametrize("namespaces", [[], ["a", "demo-space", "default"]])
def test_the_operator_has_the_rights_of_its_list_and_no_others(namespaces: list[str]) -> None:
    """Where namespaces are named, nothing that is in others."""
    from magnetar_operator.kube import rbac

    manifests = with_values(operator={"enabled": True, "watchNamespaces": namespaces})
    (role,) = [
        each
        for name, each in of_kind(manifests, "ClusterRole").items()
        if name.endswith("-operator")
    ]
    roles = {
        each["metadata"]["namespace"]: each["rules"] for each in manifests if each["kind"] == "Role"
    }
    own, watched = rbac.role_rules("own"), rbac.role_rules("watched")
    if namespaces:
        assert role["rules"] == rbac.role_rules("cluster")
        assert roles == {"a": watched, "demo-space": watched, "default": own + watched}
    else:
        assert role["rules"] == rbac.role_rules("cluster") + watched
        assert roles == {"default": own}


def test_the_operators_environment_is_what_it_reads() -> None:
    from magnetar_operator.settings import Settings

    manifests = with_values(operator={"enabled": True, "watchNamespaces": ["a", "b"]})
    deployment = of_kind(manifests, "Deployment")[f"{RELEASE}-operator"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = {name: value or "pod" for name, value in environment(container).items()}
    settings = Settings.from_environment(given)
    assert settings.namespaces == ("a", "b")
    assert (settings.service, settings.lease_name) == (f"{RELEASE}-operator",) * 2
    assert (settings.image, settings.autoscaling) == ("magnetar:0.1.0", True)
    assert settings.spark_image == "magnetar-spark:0.1.0"
    (service,) = [each for each in of_kind(manifests, "Service").values()
                  if each["metadata"]["name"] == settings.service]  # fmt: skip
    assert service["spec"]["ports"][0]["port"] == 443


def test_every_component_is_behind_a_network_policy() -> None:
    manifests = rendered("three-nodes")
    chosen = [
        each["spec"]["podSelector"]["matchLabels"]
        for each in of_kind(manifests, "NetworkPolicy").values()
    ]
    for each in manifests:
        if each["kind"] in {"Deployment", "StatefulSet"}:
            assert each["spec"]["selector"]["matchLabels"] in chosen
    rules = of_kind(manifests, "NetworkPolicy")[f"{RELEASE}-etcd"]["spec"]["ingress"]
    assert all("from" in rule for rule in rules)


def test_bookies_have_one_volume_as_large_as_pulsars_two() -> None:
    def size(**volumes: Any) -> str:
        manifests = with_values(bookkeeper={"volumes": volumes})
        claims = of_kind(manifests, "StatefulSet")[f"{RELEASE}-bookie"]["spec"][
            "volumeClaimTemplates"
        ]
        assert [claim["metadata"]["name"] for claim in claims] == ["data"]
        return str(claims[0]["spec"]["resources"]["requests"]["storage"])

    assert size() == "60Gi"
    assert size(journal={"size": "512Mi"}, ledgers={"size": "1Gi"}) == "1536Mi"
    assert size(journal={"size": "1G"}, ledgers={"size": "1.5Ti"}) == "1573818Mi"
    assert size(common={"size": "5Gi"}) == "5Gi"


def test_volumes_outlive_the_release() -> None:
    for name, each in of_kind(rendered(), "StatefulSet").items():
        assert each["spec"]["persistentVolumeClaimRetentionPolicy"] == {
            "whenDeleted": "Retain",
            "whenScaled": "Retain",
        }, name


def test_settings_get_to_the_processes_and_restart_them() -> None:
    data = {"managedLedgerCacheSizeMB": 128, "ack_quorum": None, "topic_metrics": False}
    before = of_kind(rendered(), "Deployment")[f"{RELEASE}-broker"]
    manifests = with_values(broker={"configData": data})
    after = of_kind(manifests, "Deployment")[f"{RELEASE}-broker"]
    assert of_kind(manifests, "ConfigMap")[f"{RELEASE}-broker"]["data"] == {
        "PULSAR_PREFIX_managedLedgerCacheSizeMB": "128",
        "PULSAR_PREFIX_managedLedgerDefaultAckQuorum": "2",
        "PULSAR_PREFIX_managedLedgerDefaultEnsembleSize": "2",
        "PULSAR_PREFIX_managedLedgerDefaultWriteQuorum": "2",
        "MAGNETAR_TOPIC_METRICS": "false",
    }
    checksums = [
        each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for each in (before, after)
    ]
    assert checksums[0] != checksums[1]


def test_large_numbers_are_not_written_as_powers_of_ten() -> None:
    manifests = with_values(bookkeeper={"configData": {"logSizeLimit": 1073741824}})
    data = of_kind(manifests, "ConfigMap")[f"{RELEASE}-bookie"]["data"]
    assert data == {"PULSAR_PREFIX_logSizeLimit": "1073741824"}


def test_the_environment_is_known_to_the_processes() -> None:
    """A variable that the process does not know stops it at once."""
    from magnetar.cli.roles import ROLES
    from magnetar.settings.field import settings_of

    manifests = rendered("external-etcd", json.dumps({"components": {"autorecovery": True}}))
    known = {setting.env for role in ROLES.values() for setting in settings_of(role).values()}
    for _, spec in pods(manifests):
        for container in spec["containers"]:
            ours = {name for name in environment(container) if name.startswith("MAGNETAR_")}
            assert ours <= known


def test_a_broker_has_the_grace_period_to_hand_its_topics_over() -> None:
    manifests = with_values(broker={"gracePeriod": 100, "preStopSeconds": 8})
    spec = of_kind(manifests, "Deployment")[f"{RELEASE}-broker"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["terminationGracePeriodSeconds"] == 100
    assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 8}}
    assert environment(container)["MAGNETAR_SHUTDOWN_TIMEOUT_MS"] == "90000"


def test_the_autoscaler_has_metrics_and_leaves_the_number_of_brokers_alone() -> None:
    manifests = with_values(broker={"autoscaling": {"enabled": True}})
    assert "replicas" not in of_kind(manifests, "Deployment")[f"{RELEASE}-broker"]["spec"]
    spec = of_kind(manifests, "HorizontalPodAutoscaler")[f"{RELEASE}-broker"]["spec"]
    assert [metric["resource"]["name"] for metric in spec["metrics"]] == ["cpu"]
    assert spec["scaleTargetRef"]["name"] == f"{RELEASE}-broker"


def test_topology_spread_is_given_the_components_selector() -> None:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    manifests = with_values(broker={"topologySpreadConstraints": [constraint]})
    deployment = of_kind(manifests, "Deployment")[f"{RELEASE}-broker"]["spec"]
    (made,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert made == {**constraint, "labelSelector": deployment["selector"]}


def test_pod_monitors_keep_the_labels_of_the_metrics() -> None:
    monitors = of_kind(rendered("three-nodes"), "PodMonitor")
    assert set(monitors) == {
        f"{RELEASE}-{each}" for each in ("broker", "bookie", "recovery", "etcd")
    }
    for each in monitors.values():
        (endpoint,) = each["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True
        targets = {rule.get("targetLabel") for rule in endpoint["relabelings"]}
        assert {"job", "kubernetes_pod_name", "kubernetes_namespace"} <= targets


def test_dashboards_are_found_by_grafanas_sidecar() -> None:
    boards = [
        each
        for name, each in of_kind(rendered(), "ConfigMap").items()
        if name.startswith(f"{RELEASE}-dashboard-")
    ]
    assert len(boards) == len(list((CHART / "dashboards").glob("*.json"))) == 6
    for each in boards:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        (text,) = each["data"].values()
        assert json.loads(text)["uid"].startswith("magnetar-")


def test_the_crds_come_with_the_operator_or_as_asked() -> None:
    def shown(values: str) -> int:
        text = helm()("template", RELEASE, CHART, "--include-crds", "-f", "-", stdin=values)
        return text.count("\nkind: CustomResourceDefinition\n")

    count = len(list((CHART.parents[1] / "crds").glob("*.yaml")))
    assert shown("{}") == 0
    assert shown("operator: {enabled: true}") == count
    assert shown("{operator: {enabled: true}, crds: {install: false}}") == 0
    assert shown("crds: {install: true}") == count
