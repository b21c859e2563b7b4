"""Namespaces of one tenant that are created at the same time."""

import asyncio

from magnetar.broker.catalog.resources import CAS_ATTEMPTS_MAX, Resources
from magnetar.core.names import NamespaceName
from magnetar.metadata.memory import MemoryStore


async def test_creations_of_one_tenant_wait_for_one_another() -> None:
    resources = Resources(MemoryStore())
    await resources.create_tenant("t", {})
    names = [f"t/n{number:02}" for number in range(3 * CAS_ATTEMPTS_MAX)]
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(resources.create_namespace(NamespaceName.parse(name), {}))
    assert await resources.namespaces("t") == names
