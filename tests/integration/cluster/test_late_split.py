"""A split whose answer comes after the lease that it was made under has been lost."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.support.brokers import TOPIC, WITHIN_S, bundle_of, find, other, running_cluster

from magnetar.core.errors import MagnetarError
from magnetar.core.names import parse_topic
from magnetar.metadata.store import Delete, Operation

NAME = parse_topic(TOPIC)


@pytest.mark.parametrize("lands", [True, False], ids=["landed", "too late to land"])
async def test_parts_are_not_owned_whose_records_went_with_the_lease(
    lands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two brokers would serve them: clients of the one would not see what goes to the other."""
    async with running_cluster() as cluster:
        owner = await find(cluster)
        new = other(cluster, owner)
        landed, answering = asyncio.Event(), asyncio.Event()
        transact = owner.view.transact

        async def late(operations: Sequence[Operation]) -> int:
            revision = await transact(operations) if lands else 0
            if any(isinstance(one, Delete) for one in operations):
                landed.set()
                await answering.wait()
            return revision if lands else await transact(operations)

        monkeypatch.setattr(owner.view, "transact", late)
        splitting = asyncio.ensure_future(owner.ownership.split(bundle_of(owner)))
        await landed.wait()
        await owner.expire()
        async with asyncio.timeout(WITHIN_S):
            while len(owner.view.leases) < 2 or not owner.ownership.serving:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while new.ownership.claims.get(bundle_of(new)) is None:
                await new.ownership.claims.acquire(bundle_of(new))
        assert new.ownership.owns(NAME)
        answering.set()
        await asyncio.wait([splitting])
        assert isinstance(splitting.exception(), MagnetarError | None)
        assert not owner.ownership.owns(NAME)
        assert not set(owner.ownership.owned()) & set(new.ownership.owned())
