"""`spec.policies` on a real API server: its schemas and rules accept exactly what REST accepts."""

from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes import client
from tests.operator.crd_resources import SHORTEST, Resources
from tests.operator.drawn_policies import manifests

from magnetar.policies.policy import Level, Policy
from magnetar.policies.registry import POLICIES, rest_of
from magnetar.policies.types import PolicyInvalid
from magnetar_operator.models.values import to_rest

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("crds")]

DRAWN_PER_POLICY: Final = 15
DRAWN_PER_RULE: Final = 60


@pytest.fixture
def resources(kube_api: client.ApiClient, kube_namespace: str) -> Resources:
    return Resources(kube_api, kube_namespace)


@pytest.mark.parametrize(
    ("policy", "level"),
    [(policy, level) for policy in POLICIES for level in Level if rest_of(policy, level)],
    ids=lambda one: one.name if isinstance(one, Policy) else one.value,
)
@given(data=st.data())
@settings(
    max_examples=DRAWN_PER_POLICY,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_api_server_accepts_the_policies_that_rest_accepts(
    policy: Policy, level: Level, resources: Resources, data: Any
) -> None:
    """Each rule of a record exists in CEL and in Python: both must agree."""
    rounds = DRAWN_PER_RULE // DRAWN_PER_POLICY if getattr(policy.type, "rules", ()) else 1
    kind = "Namespace" if level is Level.NAMESPACE else "Topic"
    for _ in range(rounds):
        value = data.draw(manifests(policy.type))
        wrong = ""
        try:
            wrong = policy.unsupported(to_rest(policy, value)) or ""
        except PolicyInvalid as error:
            wrong = error.text
        spec = {**SHORTEST[kind], "policies": {policy.manifest: value}}
        refused = resources.refusal(kind, spec)
        assert bool(refused) == bool(wrong), (value, refused, wrong)
        assert wrong in refused
