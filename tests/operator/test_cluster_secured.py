"""A cluster with TLS and tokens: Secrets first, etcd restarts for trust, no gate deadlocks."""

import datetime
from typing import Any

import pytest

from magnetar_operator.cluster.actions import IssueSecret
from magnetar_operator.cluster.manifests import security, storage
from magnetar_operator.cluster.manifests.brokers import broker_settings as settings_of
from magnetar_operator.cluster.manifests.names import ETCD, Cluster, sealed
from magnetar_operator.cluster.manifests.surroundings import service_monitors
from magnetar_operator.cluster.observed import Observed, Pod, present_admin_url
from magnetar_operator.cluster.plan import Plan, plan
from magnetar_operator.cluster.refusals import refusals
from magnetar_operator.cluster.secrets import trust_digest
from magnetar_operator.cluster.status import status
from magnetar_operator.engine.plan import Apply
from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.cluster import ClusterSpec
from magnetar_operator.models.switches import switched_on
from magnetar_operator.security.issue import manifest
from magnetar_operator.security.wanted import ANNOUNCED_AT, ROTATE

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CLOSED: dict[str, Any] = {
    "tls": {"enabled": True},
    "auth": {"authentication": {"enabled": True}, "authorization": {"enabled": True}},
}


def cluster_of(spec: dict[str, Any]) -> Cluster:
    return Cluster("c", "ns", "uid", ClusterSpec.parse(spec), "magnetar:1", "etcd:1")


def planned(cluster: Cluster, observed: Observed) -> Plan:
    return plan(cluster, observed, 0, NOW)


def issued(cluster: Cluster, observed: Observed, now: datetime.datetime = NOW) -> None:
    """Issues everything that the planner asks for, round by round."""
    wanted = security.wanted_of(cluster)
    assert wanted is not None
    secrets = dict(observed.secrets) or dict.fromkeys(wanted.secrets)
    for _ in range(5):
        observed.secrets = secrets
        actions = [
            action
            for action in plan(cluster, observed, 0, now).actions
            if isinstance(action, IssueSecret)
        ]
        if not actions:
            return
        before = dict(secrets)
        for action in actions:
            secrets[action.issue.secret] = manifest(action.issue, wanted, before, now)
    raise AssertionError("never settles")


def applied(plan: Plan) -> dict[str, Object]:
    return {
        f"{action.manifest['kind']} {action.manifest['metadata']['name']}": action.manifest
        for action in plan.actions
        if isinstance(action, Apply)
    }


def test_secrets_are_issued_before_the_pods_that_mount_them() -> None:
    cluster = cluster_of(CLOSED)
    actions = planned(cluster, Observed()).actions
    kinds = [isinstance(action, IssueSecret) for action in actions]
    assert kinds[0]
    assert kinds == sorted(kinds, reverse=True)


def test_once_issued_the_trust_is_published_and_nothing_is_issued_again() -> None:
    cluster, observed = cluster_of(CLOSED), Observed()
    issued(cluster, observed)
    objects = applied(planned(cluster, observed))
    trust = objects["ConfigMap c-ca"]["data"]
    assert list(trust) == ["ca.crt"]
    assert "PRIVATE" not in trust["ca.crt"]
    annotations = objects["StatefulSet c-etcd"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations[security.TRUST_DIGEST] == trust_digest(cluster, observed)


def test_etcd_is_created_once_it_has_its_certificate() -> None:
    """Its pods would restart at once, for the authorities that they did not start with."""
    cluster, observed = cluster_of(CLOSED), Observed()
    assert "StatefulSet c-etcd" not in applied(planned(cluster, observed))
    issued(cluster, observed)
    assert "StatefulSet c-etcd" in applied(planned(cluster, observed))


def test_etcd_restarts_only_after_its_own_secret_has_the_new_authority() -> None:
    cluster, observed = cluster_of(CLOSED), Observed()
    issued(cluster, observed)
    before = trust_digest(cluster, observed)
    secrets = dict(observed.secrets)
    authority = secrets["c-ca-tls"]
    assert authority is not None
    authority["metadata"]["annotations"] = {ROTATE: "true"}
    wanted = security.wanted_of(cluster)
    assert wanted is not None
    (announce,) = issues(cluster, observed, NOW)
    observed.secrets = {**secrets, "c-ca-tls": manifest(announce.issue, wanted, secrets, NOW)}
    assert trust_digest(cluster, observed) == before
    issued(cluster, observed)
    assert trust_digest(cluster, observed) != before


def test_no_plan_and_no_status_shows_a_secret() -> None:
    cluster, observed = cluster_of(CLOSED), Observed()
    owner: Object = {"metadata": {"name": "c", "generation": 1}}
    texts = []
    for _ in range(2):
        plan_now = planned(cluster, observed)
        texts.append(repr(plan_now.actions))
        texts.append(
            str(
                status(
                    cluster, owner, observed, plan_now, "1", NOW, is_paused=False, is_plan_only=True
                )
            )
        )
        issued(cluster, observed)
    texts.append(repr(observed))
    for text in texts:
        assert "PRIVATE" not in text
        for secret in observed.secrets.values():
            assert secret is not None
            for key, value in secret["data"].items():
                if key not in ("ca.crt", "tls.crt", "PUBLICKEY"):
                    assert value[:60] not in text


def test_a_new_authority_signs_only_after_etcd_has_restarted() -> None:
    """etcd reads the authorities that it trusts at its start, and at no other time."""
    cluster, observed = cluster_of(CLOSED), Observed()
    issued(cluster, observed)
    before = storage.etcd_stateful_set(cluster, None, trust_digest(cluster, observed))
    observed.objects["StatefulSet", "c-etcd"] = running(before, "r1")
    observed.pods = [etcd_pod(index, "r1") for index in range(3)]
    authority = observed.secrets["c-ca-tls"]
    assert authority is not None
    authority["metadata"]["annotations"] = {ROTATE: "true"}
    issued(cluster, observed)
    announced = observed.secrets["c-ca-tls"]
    assert announced is not None
    assert ANNOUNCED_AT in announced["metadata"]["annotations"]

    later = NOW + datetime.timedelta(hours=1)
    assert not issues(cluster, observed, later), "the stored template has the old authorities"
    after = applied(plan(cluster, observed, 0, later))["StatefulSet c-etcd"]
    observed.objects["StatefulSet", "c-etcd"] = running(after, "r2")
    assert not issues(cluster, observed, later), "no member has restarted"
    observed.pods = [etcd_pod(0, "r1"), etcd_pod(1, "r2"), etcd_pod(2, "r2")]
    assert not issues(cluster, observed, later), "one member has not"
    observed.pods = [etcd_pod(index, "r2") for index in range(3)]
    (promotion,) = issues(cluster, observed, later)
    assert promotion.issue.step.value == "promote"


def issues(cluster: Cluster, observed: Observed, now: datetime.datetime) -> list[IssueSecret]:
    actions = plan(cluster, observed, 0, now).actions
    return [action for action in actions if isinstance(action, IssueSecret)]


def running(stateful_set: Object, revision: str) -> Object:
    metadata = {**sealed(stateful_set)["metadata"], "generation": 1, "uid": "s"}
    found = {
        "observedGeneration": 1,
        "updateRevision": revision,
        "currentRevision": revision,
        "replicas": 3,
    }
    return {**stateful_set, "metadata": metadata, "status": found}


def etcd_pod(index: int, revision: str) -> Pod:
    since = NOW - datetime.timedelta(hours=1)
    return Pod(f"c-etcd-{index}", f"u{index}", ETCD, revision, True, since, False)


def test_secrets_that_may_not_be_read_are_a_problem_that_names_the_rights() -> None:
    cluster = cluster_of(CLOSED)
    observed = Observed(secrets_unknown="secrets is forbidden")
    new_plan = planned(cluster, observed)
    (problem,) = new_plan.problems
    assert "c-ca-tls" in problem
    assert "operator.securedClusters" in problem
    assert not [action for action in new_plan.actions if isinstance(action, IssueSecret)]


def broker(name: str, *ports: str, ready: bool = True) -> Pod:
    return Pod(name, name, "broker", "", ready, NOW, False, ports=frozenset(ports))


PLAIN, TLS = ("http", "pulsar"), ("https", "pulsarssl")


@pytest.mark.parametrize(
    ("has_tls", "brokers", "scheme"),
    [
        (True, [broker("a", *PLAIN)], "http"),
        (True, [broker("a", *PLAIN), broker("b", *TLS, ready=False)], "http"),
        (True, [broker("a", *PLAIN), broker("b", *TLS)], "https"),
        (True, [], "https"),
        (False, [broker("a", *TLS)], "https"),
        (False, [broker("a", *TLS), broker("b", *PLAIN)], "http"),
    ],
)
def test_the_operator_asks_at_a_port_that_brokers_serve_now(
    has_tls: bool, brokers: list[Pod], scheme: str
) -> None:
    """Or restarts would wait for ledgers' health, and that for the restarts."""
    cluster = cluster_of({"tls": {"enabled": has_tls}})
    assert present_admin_url(cluster, brokers).partition(":")[0] == scheme


def test_a_certificate_names_a_pod_before_it_exists() -> None:
    """Brokers redirect clients to pods of a Deployment, which have addresses and no names."""
    names = security.names_of(cluster_of(CLOSED), "broker")
    assert "*.ns.pod" in names.dns
    assert "c-broker.ns.svc" in names.dns


def test_config_cannot_take_back_what_the_spec_closes() -> None:
    spec = {
        **CLOSED,
        "broker": {"config": {"superUserRoles": "me", "PULSAR_PREFIX_tokenPublicKey": ""}},
    }
    problems = planned(cluster_of(spec), Observed()).problems
    assert [text.partition(" ")[0] for text in problems] == [
        "spec.broker.config.PULSAR_PREFIX_tokenPublicKey",
        "spec.broker.config.superUserRoles",
    ]


@pytest.mark.parametrize("key", ["authenticationEnabled", "tlsEnabled", "brokerServicePortTls"])
def test_the_switches_of_security_are_fields_and_no_config(key: str) -> None:
    assert switched_on({key: "true"}) == [key]
    spec = {"broker": {"config": {f"PULSAR_PREFIX_{key}": "true"}}}
    (problem,) = planned(cluster_of(spec), Observed()).problems
    assert problem.startswith(f"spec.broker.config.PULSAR_PREFIX_{key} belongs into spec.tls and")


def test_metrics_of_brokers_need_a_token_that_prometheus_has() -> None:
    cluster = cluster_of(CLOSED)
    assert settings_of(cluster)["PULSAR_PREFIX_authenticateMetricsEndpoint"] == "true"
    monitors = {document["metadata"]["name"]: document for document in service_monitors(cluster)}
    (endpoint,) = monitors["c-broker"]["spec"]["endpoints"]
    credentials = endpoint["authorization"]["credentials"]
    wanted = security.wanted_of(cluster)
    assert wanted is not None
    assert wanted.tokens is not None
    assert credentials == {"name": wanted.tokens.roles[security.METRICS_ROLE], "key": "TOKEN"}
    assert security.METRICS_ROLE not in settings_of(cluster)["PULSAR_PREFIX_superUserRoles"]
    (other,) = monitors["c-bookie"]["spec"]["endpoints"]
    assert "authorization" not in other


def test_metrics_of_brokers_may_stay_open() -> None:
    config = {"authenticateMetricsEndpoint": "false"}
    cluster = cluster_of({**CLOSED, "broker": {"config": config}})
    assert settings_of(cluster)["PULSAR_PREFIX_authenticateMetricsEndpoint"] == "false"
    assert not refusals(cluster)
    assert "PULSAR_PREFIX_authenticateMetricsEndpoint" not in settings_of(cluster_of({}))
