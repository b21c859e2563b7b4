"""The order of a plan's steps, and their descriptions."""

import pytest
from tests.operator.test_resources_plan import TARGET

from magnetar_operator.catalog.plan import Verb, plan
from magnetar_operator.catalog.state import (
    PARTITIONS,
    POLICIES,
    PROPERTIES,
    SCHEMA,
    Desired,
    Observed,
)

FIELDS = {
    f"{POLICIES}maxProducersPerTopic": 3,
    SCHEMA: "digest",
    f"{POLICIES}messageTTL": 60,
    f"{PROPERTIES}team": "red",
    PARTITIONS: 4,
}


@pytest.mark.parametrize("there", [{PARTITIONS: 2}, None])
def test_steps_are_ordered_shape_properties_schema_policies(
    there: dict[str, object] | None,
) -> None:
    """A schema that a topic refuses is refused before the policies are loosened for it."""
    observed = None if there is None else Observed(there)
    new_plan = plan(TARGET, Desired(FIELDS, {}), observed).steps
    assert new_plan[0].verb is (Verb.CREATE if there is None else Verb.GROW)
    assert [item.field for item in new_plan[1:]] == [
        f"{PROPERTIES}team", SCHEMA, f"{POLICIES}maxProducersPerTopic", f"{POLICIES}messageTTL",
    ]  # fmt: skip


def test_steps_describe_changes_without_the_schemas_digest() -> None:
    planned = plan(
        TARGET, Desired(FIELDS, {}), Observed({PARTITIONS: 2, f"{PROPERTIES}team": "blue"})
    )
    assert [action.text for action in planned.steps] == [
        "partitions: 2 → 4",
        "properties.team: blue → red",
        "register the schema as a version of the topic's",
        "maxProducersPerTopic: not set → 3",
        "messageTTL: not set → 1m",
    ]
    created = plan(TARGET, Desired(FIELDS, {}), None)
    assert [action.text for action in created.steps] == [
        f"create topic {TARGET.name} with 4 partitions",
        "set properties.team to red",
        "set schema to the given schema",
        "set maxProducersPerTopic to 3",
        "set messageTTL to 1m",
    ]
