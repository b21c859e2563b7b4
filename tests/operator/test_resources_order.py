"""The order of a plan's steps, and what each says that it does."""

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
def test_shape_comes_before_properties_the_schema_and_policies(
    there: dict[str, object] | None,
) -> None:
    """A schema that a topic refuses is refused before the policies are loosened for it."""
    observed = None if there is None else Observed(there)
    made = plan(TARGET, Desired(FIELDS, {}), observed).steps
    assert made[0].verb is (Verb.CREATE if there is None else Verb.GROW)
    assert [one.field for one in made[1:]] == [
        f"{PROPERTIES}team", SCHEMA, f"{POLICIES}maxProducersPerTopic", f"{POLICIES}messageTTL",
    ]  # fmt: skip


def test_steps_say_what_they_change_and_nothing_of_a_schemas_digest() -> None:
    made = plan(TARGET, Desired(FIELDS, {}), Observed({PARTITIONS: 2, f"{PROPERTIES}team": "blue"}))
    assert [one.text for one in made.steps] == [
        "partitions: 2 → 4",
        "properties.team: blue → red",
        "register the schema as a version of the topic's",
        "maxProducersPerTopic: not set → 3",
        "messageTTL: not set → 1m",
    ]
    created = plan(TARGET, Desired(FIELDS, {}), None)
    assert [one.text for one in created.steps] == [
        f"create topic {TARGET.name} with 4 partitions",
        "set properties.team to red",
        "set schema to the given schema",
        "set maxProducersPerTopic to 3",
        "set messageTTL to 1m",
    ]
