"""What was set from a manifest, shown again by a cluster: nothing is left to be done."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.drawn_policies import valid

from magnetar.admin.routers.policies import forms
from magnetar.admin.routers.policies.documents import LOCAL, shown_document, with_value
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.policies.policy import Level, Policy
from magnetar.policies.registry import at
from magnetar_operator.admin.target import NAMESPACE, TOPIC, Target
from magnetar_operator.catalog.plan import plan
from magnetar_operator.catalog.state import (
    PARTITIONS,
    Desired,
    Observed,
    desired_of,
    namespace,
    policy_of,
    topic_fields,
)
from magnetar_operator.models.resources import NamespaceSpec, TopicSpec

CLUSTER = "c1"
DRAWN_PER_POLICY = 25
SHOWN = [policy for policy in at(Level.NAMESPACE) if policy.document not in LOCAL]


def wanted(policy: Policy, data: Any, spec: type[NamespaceSpec] | type[TopicSpec]) -> Desired:
    drawn = data.draw(valid(policy))
    name = "a/b" if spec is NamespaceSpec else "a/b/c"
    return desired_of(spec.parse({"name": name, "policies": {policy.manifest: drawn}}))


@pytest.mark.parametrize("policy", SHOWN, ids=lambda policy: policy.name)
@given(data=st.data())
@settings(max_examples=DRAWN_PER_POLICY)
def test_a_namespace_s_policy(policy: Policy, data: st.DataObject) -> None:
    desired = wanted(policy, data, NamespaceSpec)
    document: Any = default_policies(CLUSTER)
    for field, value in desired.fields.items():
        field_policy = policy_of(field)
        if field_policy is not None:
            document = with_value(document, field_policy[0], value, CLUSTER, field_policy[1])
    observed_fields = namespace(shown_document(document, auto_update=True), 0, CLUSTER)
    assert not plan(Target(NAMESPACE, "a/b"), desired, observed_fields).actions


@pytest.mark.parametrize("policy", at(Level.TOPIC), ids=lambda policy: policy.name)
@given(data=st.data())
@settings(max_examples=DRAWN_PER_POLICY)
def test_a_topic_s_policy(policy: Policy, data: st.DataObject) -> None:
    desired = wanted(policy, data, TopicSpec)
    value: Any = None
    for field, part in desired.fields.items():
        field_policy = policy_of(field)
        if field_policy is not None:
            value = {**(value or {}), field_policy[1]: part} if field_policy[1] else part
    held = {policy.name: forms.shown(policy, value)}
    observed = Observed(topic_fields(desired.fields.get(PARTITIONS, 0), None, held))
    planned = plan(Target(TOPIC, "persistent://a/b/c"), desired, observed)
    assert not [action for action in planned.actions if action.field in desired.fields]
