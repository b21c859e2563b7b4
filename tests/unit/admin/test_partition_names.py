"""Names of partitions, and names that only resemble them, over REST; texts are Pulsar's."""

import pytest

from .support import NO_BODY, Admin

BASE = "~/persistent/t1/n1/"
NO_PARENT = (
    'Can\'t create topic {} with "-partition-" followed by numeric value '
    "if there isn't a partitioned topic zz created."
)
PARTITION_NAME = "Partitioned Topic Name should not contain '-partition-'"
NOT_FOUND = "Topic persistent://t1/n1/{} not found"
NO_POLICIES = "Not allowed to set/get topic policy for a partition"
ABSENT = "Topic partitions were not yet created"
CLOSED = "Topic does not exist and cannot be auto-created"


@pytest.fixture
async def topics(admin: Admin) -> Admin:
    """Creates the unpartitioned topic `a`, and `pt` with two partitions."""
    await admin.done("PUT", BASE + "a")
    await admin.done("PUT", BASE + "pt/partitions", 2)
    return admin


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("PUT", "zz-partition-0", NO_BODY, 412, NO_PARENT.format("zz-partition-0")),
        ("PUT", "zz-partition-00", NO_BODY, 412, NO_PARENT.format("zz-partition-00")),
        ("PUT", "zz-partition--1", NO_BODY, 412, NO_PARENT.format("zz-partition--1")),
        ("PUT", "zz-partition-01/partitions", 4, 412, PARTITION_NAME),
        ("DELETE", "pt-partition-0/partitions", NO_BODY, 412, PARTITION_NAME),
        ("GET", "pt-partition-9/partitions", NO_BODY, 404, NOT_FOUND.format("pt-partition-9")),
        ("GET", "zz-partition-2/partitions", NO_BODY, 404, NOT_FOUND.format("zz-partition-2")),
        ("GET", "pt-partition-9/stats", NO_BODY, 404, ABSENT),
        ("GET", "a-partition-0/retention", NO_BODY, 412, NO_POLICIES),
        ("POST", "a-partition-0/maxProducers", 3, 412, NO_POLICIES),
        ("DELETE", "zz-partition-5/retention", NO_BODY, 412, NO_POLICIES),
        ("PUT", "pt-partition-9/subscription/s", NO_BODY, 412, CLOSED),
    ],
)
async def test_a_partition_beyond_the_declared_number_is_not_created(
    topics: Admin, method: str, path: str, body: object, status: int, reason: str
) -> None:
    answer = await topics.call(method, BASE + path, body)
    assert (answer.status_code, answer.json()) == (status, {"reason": reason})


async def test_names_that_only_look_like_partitions(topics: Admin) -> None:
    await topics.done("PUT", BASE + "zz-partition-x")
    await topics.done("PUT", BASE + "pt-partition-01")
    await topics.done("GET", BASE + "pt-partition-1/partitions")
    actual = (await topics.call("GET", BASE + "pt-partition-01/partitions")).json()
    assert actual["partitions"] == 0


async def test_properties_are_not_changed_with_the_number_of_partitions(topics: Admin) -> None:
    body = {"partitions": 4, "properties": {"team": "payments"}}
    answer = await topics.call("POST", BASE + "pt/partitions", body)
    assert (answer.status_code, "PUT …/properties" in answer.json()["reason"]) == (400, True)
    assert (await topics.call("GET", BASE + "pt/partitions")).json()["partitions"] == 2


async def test_invalid_names_of_namespaces(topics: Admin) -> None:
    for path in ("~/persistent/b@d/n1/x", "~/persistent/t1/b@d/x"):
        answer = await topics.call("PUT", path)
        assert (answer.status_code, answer.json()["reason"]) == (412, "Namespace name is not valid")
