"""The operator's rights beside those on what it reconciles: it needs them all, and no others.

Those on clusters, resources and jobs are held against what is asked for where these live their
lives (`test_operator_process`, `test_resources_live`, `test_sparkjobs_live`). Here are the others:
what is watched, and the scopes `own` and `cluster`, under an account of a real API server that has
just these rights.
"""

from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest
from kubernetes import client, config
from tests.support.kube import Tool, wait_allowed

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.autoscale.api import GROUP, VERSION
from magnetar_operator.autoscale.server import API_SERVICE_NAME, Endpoint, MetricsServer
from magnetar_operator.engine.context import Context
from magnetar_operator.engine.queue import ReconcileQueue
from magnetar_operator.kube.client import Forbidden, KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import API_SERVICE, Object
from magnetar_operator.kube.lease import Leadership
from magnetar_operator.kube.rbac import RULES, granted, role_rules
from magnetar_operator.main import PARTS
from magnetar_operator.settings import Settings

pytestmark = [pytest.mark.kube, pytest.mark.timeout(180)]

RBAC = "rbac.authorization.k8s.io"
ACCOUNT = "operator"
WHOM_TO_TRUST = ("get", "", "configmaps")
"""Of kube-system, by a role that Kubernetes has for it."""


def roles(namespace: str) -> list[Object]:
    """As the chart gives them (`test_templates` compares), to an account of the namespace."""
    subjects = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}]

    def binding(kind: str, role_kind: str, role: str, metadata: dict[str, str]) -> Object:
        return {
            "apiVersion": f"{RBAC}/v1",
            "kind": kind,
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
            "subjects": subjects,
        }

    def role(kind: str, metadata: dict[str, str], scope: str) -> Object:
        rules = role_rules(scope)
        return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules}

    own, wide = {"name": ACCOUNT, "namespace": namespace}, {"name": namespace}
    trust = {"name": namespace, "namespace": "kube-system"}
    return [
        role("Role", own, "own"),
        binding("RoleBinding", "Role", ACCOUNT, own),
        role("ClusterRole", wide, "cluster"),
        binding("ClusterRoleBinding", "ClusterRole", namespace, wide),
        binding("RoleBinding", "Role", "extension-apiserver-authentication-reader", trust),
    ]


@pytest.fixture
async def bound(kubectl: Tool, kube_namespace: str) -> AsyncIterator[KubeClient]:
    """Asks as an account that has the scopes `own` and `cluster`, and nothing else."""
    within = kubectl.within(kube_namespace)
    within("create", "serviceaccount", ACCOUNT)
    kubectl.apply(*roles(kube_namespace))
    account = f"system:serviceaccount:{kube_namespace}:{ACCOUNT}"
    wait_allowed(within, account, "create", "leases.coordination.k8s.io")
    registration = f"apiservices.apiregistration.k8s.io/{API_SERVICE_NAME}"
    wait_allowed(kubectl, account, "get", registration)
    trust = "configmaps/extension-apiserver-authentication"
    wait_allowed(kubectl.within("kube-system"), account, "get", trust)
    settings: Any = client.Configuration()
    config.load_kube_config(client_configuration=settings)
    settings.cert_file = settings.key_file = None
    settings.api_key = {"authorization": f"Bearer {within('create', 'token', ACCOUNT).strip()}"}
    kube_client = KubeClient(settings)
    yield kube_client
    await kube_client.close()
    for kind in ("clusterrolebinding", "clusterrole"):
        kubectl("delete", kind, kube_namespace)
    kubectl.within("kube-system")("delete", "rolebinding", kube_namespace)


@pytest.fixture
async def registered(kube_namespace: str) -> AsyncIterator[None]:
    """The APIService, as the chart makes it; it must not stay behind without its server."""
    kube = KubeClient.connect()
    assert await kube.find(API_SERVICE, API_SERVICE_NAME) is None, "somebody serves metrics here"
    service = {"name": "magnetar-operator", "namespace": kube_namespace, "port": 443}
    spec = {
        "group": GROUP,
        "version": VERSION,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": service,
    }
    manifest = {
        "apiVersion": API_SERVICE.api_version,
        "kind": API_SERVICE.kind,
        "metadata": {"name": API_SERVICE_NAME},
        "spec": spec,
    }
    await kube.create(manifest)
    try:
        yield
    finally:
        await kube.delete(API_SERVICE, API_SERVICE_NAME)
        await kube.close()


async def test_lease_certificate_and_registration_need_each_right_and_no_other(
    bound: KubeClient, kube_namespace: str, registered: None
) -> None:
    leadership = Leadership(bound, kube_namespace, "magnetar-operator", "one")
    await leadership.take()
    bound.guard = leadership.check

    async def app(*_: object) -> None:
        """Nobody asks."""

    # With other names than before the certificate is created again.
    for endpoint in (
        Endpoint(service="before", namespace=kube_namespace),
        Endpoint(namespace=kube_namespace),
    ):
        server = MetricsServer(bound, app, endpoint)
        await server.prepare()
    assert await server.register()
    await leadership.release()
    requests = set(bound.requests) - {WHOM_TO_TRUST}
    allowed = set(granted(("own", "cluster")))
    assert requests - allowed == set(), "verbs that are missing"
    assert allowed - requests == set(), "verbs that nothing needs"
    bound.guard = lambda: None
    with pytest.raises(Forbidden):
        await bound.merge(API_SERVICE, None, "v1.apps", {"spec": {}})


async def test_exactly_the_watched_kinds_may_be_watched() -> None:
    kube = KubeClient.connect()
    context = Context(Settings(), kube, Events(kube), ReconcileQueue(1, 60.0), AdminClients())
    for part in PARTS:
        import_module(part).register(context)
    watched = {
        (selector.group, selector.plural)
        for selector in context.registry._watching.get_all_selectors()
    }
    allowed = {(rule.kind.group, rule.resource) for rule in RULES if "watch" in rule.verbs}
    assert watched == allowed
    await kube.close()
