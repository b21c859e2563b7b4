"""Values that are not possible: what helm says names the key, and what to do."""

from typing import Any

import pytest
from tests.chart.rendering import refused

pytestmark = pytest.mark.kube

SCHEMA = [
    ({"broker": {"replicas": 3}}, "'/broker'", "'replicas' not allowed"),
    ({"brokers": {}}, "''", "'brokers' not allowed"),
    ({"etcd": {"replicaCount": 2}}, "'/etcd/replicaCount'", "must be one of 1, 3"),
    ({"broker": {"replicaCount": "two"}}, "'/broker/replicaCount'", "want integer"),
    ({"bookkeeper": {"replicaCount": 0}}, "'/bookkeeper/replicaCount'", "minimum"),
    ({"broker": {"ports": {"http": 70000}}}, "'/broker/ports/http'", "maximum"),
    (
        {"bookkeeper": {"volumes": {"common": {"size": "much"}}}},
        "'/bookkeeper/volumes/common/size'",
        "does not match pattern",
    ),
    (
        {"bookkeeper": {"volumes": {"useSingleCommonVolume": False}}},
        "'/bookkeeper/volumes/useSingleCommonVolume'",
        "must be true",
    ),
    (
        {"broker": {"restartPodsOnConfigMapChange": False}},
        "'/broker/restartPodsOnConfigMapChange'",
        "must be true",
    ),
    ({"tls": {"enabled": True, "bookie": {"enabled": False}}}, "'/tls/bookie/enabled'", "must be"),
    ({"tls": {"common": {"keyAlgorithm": "DSA"}}}, "'/tls/common/keyAlgorithm'", "must be one of"),
    ({"tls": {"common": {"duration": "soon"}}}, "'/tls/common/duration'", "does not match pattern"),
    (
        {"auth": {"authentication": {"openid": {"issuer": "x"}}}},
        "'/auth/authentication/openid'",
        "not allowed",
    ),
    ({"auth": {"superUsers": {"client": "Admin!"}}}, "'/auth/superUsers/client'", "match pattern"),
    ({"broker": {"component": "bee"}}, "'/broker/component'", "must be 'broker'"),
    ({"etcd": {"external": {"endpoints": ["etcd:2379"]}}}, "'/etcd/external/endpoints/0'", "match"),
    ({"fullnameOverride": "Big"}, "'/fullnameOverride'", "does not match pattern"),
]

ONE_NODE: dict[str, Any] = {"broker": {"configData": {}}, "bookkeeper": {"replicaCount": 1}}
REFUSALS = [
    ({"zookeeper": {"replicaCount": 1}}, "zookeeper: ", "etcd.replicaCount"),
    ({"components": {"zookeeper": True}}, "components.zookeeper: ", "etcd.replicaCount"),
    ({"components": {"oxia": True}}, "components.oxia: ", "etcd.external.endpoints"),
    ({"components": {"proxy": True}}, "components.proxy: ", "broker.service.type"),
    ({"components": {"functions": True}}, "components.functions: ", "a Deployment of your own"),
    ({"components": {"pulsar_manager": True}}, "components.pulsar_manager: ", "separately"),
    ({"components": {"dekaf": True}}, "components.dekaf: ", "separately"),
    ({"standalone": {"enabled": True}}, "standalone: ", "examples/one-node.yaml"),
    ({"namespace": "pulsar"}, "namespace: ", "--namespace"),
    ({"tls": {"proxy": {"enabled": True}}}, "tls.proxy.enabled: ", "Service of the brokers"),
    (
        {"tls": {"enabled": True, "common": {"keySize": 2048}}},
        "tls.common.keySize: ",
        "256 or 384 with ECDSA",
    ),
    ({"certs": {"internal_issuer": {"enabled": True}}}, "certs: ", "for tls.enabled"),
    (
        {
            "tls": {"enabled": True},
            "certs": {"existingSecrets": True, "issuers": {"ca": {"name": "corp"}}},
        },
        "certs: ",
        "choose one of",
    ),
    (
        {"auth": {"authorization": {"enabled": True}}},
        "auth.authorization.enabled: ",
        "needs auth.authentication.enabled",
    ),
    (
        {"auth": {"authentication": {"enabled": True, "jwt": {"enabled": False}}}},
        "auth.authentication.jwt.enabled: ",
        "leave it true",
    ),
    (
        {"auth": {"authentication": {"enabled": True, "openid": {"enabled": True}}}},
        "auth.authentication.openid: ",
        "openIDAllowedTokenIssuers",
    ),
    ({"auth": {"superUsers": {"proxy": "proxy-admin"}}}, "auth.superUsers.proxy: ", "no proxy"),
    (
        {
            "auth": {"authentication": {"enabled": True}},
            "broker": {"configData": {"PULSAR_PREFIX_tokenPublicKey": "file:///x"}},
        },
        "broker.configData.PULSAR_PREFIX_tokenPublicKey: ",
        "use tls and auth",
    ),
    (
        {
            "tls": {"enabled": True},
            "bookkeeper": {"configData": {"tlsCertificateFilePath": "/x"}},
        },
        "bookkeeper.configData.tlsCertificateFilePath: ",
        "use tls and auth",
    ),
    ({"kube-prometheus-stack": {"enabled": True}}, "kube-prometheus-stack: ", "podMonitor"),
    ({"broker": {"configData": {"PULSAR_MEM": "-Xmx1g"}}}, "PULSAR_MEM: ", "broker.resources"),
    (
        {"broker": {"configData": {"metadataStoreUrl": "zk:x"}}},
        "broker.configData.metadataStoreUrl: ",
        "etcd.external",
    ),
    (
        {"bookkeeper": {"configData": {"PULSAR_PREFIX_bookiePort": "1"}}},
        "bookkeeper.configData.PULSAR_PREFIX_bookiePort: ",
        "bookkeeper.ports.bookie",
    ),
    (ONE_NODE, "managedLedgerDefaultEnsembleSize: ", "lower the first or raise the second"),
    (
        {"broker": {"configData": {"managedLedgerDefaultAckQuorum": "3"}}},
        "broker.configData: ack quorum 3",
        "at most the next",
    ),
    ({"components": {"etcd": False}}, "components.etcd: ", "etcd.external.endpoints"),
    ({"etcd": {"external": {"caKey": "ca.crt"}}}, "etcd.external.secretName: ", "Secret"),
    ({"broker": {"gracePeriod": 6, "preStopSeconds": 5}}, "broker.gracePeriod: ", "at least"),
    (
        {"broker": {"autoscaling": {"enabled": True, "minReplicas": 9}}},
        "broker.autoscaling.minReplicas: ",
        "maxReplicas",
    ),
    (
        {
            "broker": {
                "autoscaling": {"enabled": True},
                "resources": {"requests": {"cpu": None}},
            }
        },
        "broker.resources.requests.cpu: ",
        "autoscaling.metrics",
    ),
    (
        {"broker": {"autoscaling": {"enabled": True, "backlog": {"enabled": True}}}},
        "broker.autoscaling.backlog.enabled: ",
        "operator.enabled",
    ),
    (
        {"operator": {"enabled": True}, "broker": {"ports": {"http": 81}}},
        "broker.ports.http: ",
        "leave it at 8080",
    ),
    (
        {"operator": {"enabled": True}, "images": {"broker": {"tag": "x"}}},
        "images.broker: ",
        "defaultImageTag",
    ),
    (
        {"operator": {"enabled": True}, "offload": {"bucket": "b"}},
        "offload.driver: ",
        "S3",
    ),
    ({"offload": {"driver": "S3", "bucket": "b"}}, "offload: ", "broker.configData"),
    ({"operator": {"enabled": True}, "persistence": False}, "persistence: ", "operator.cluster"),
    ({"operator": {"enabled": True}, "metadataPrefix": "/x"}, "metadataPrefix: ", "empty"),
]


@pytest.mark.parametrize(("values", "where", "what"), SCHEMA)
def test_the_schema_says_where(values: dict[str, Any], where: str, what: str) -> None:
    said = refused(values)
    line = next((line for line in said.splitlines() if f"at {where}" in line and what in line), "")
    assert line, said


@pytest.mark.parametrize(("values", "where", "what"), REFUSALS)
def test_what_has_no_place_here_says_what_to_use(
    values: dict[str, Any], where: str, what: str
) -> None:
    said = refused(values)
    line = next((line for line in said.splitlines() if line.startswith("- ") and where in line), "")
    assert what in line, said


def test_all_errors_are_reported_at_once() -> None:
    said = refused(
        {"zookeeper": {}, "tls": {"proxy": {"enabled": True}}, "components": {"proxy": True}}
    )
    assert sum(line.startswith("- ") for line in said.splitlines()) == 3
