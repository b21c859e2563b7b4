"""The identity of a cluster, in the store and on a bookie's disks."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from magnetar.cluster.identity import (
    CLUSTER_FILE,
    CLUSTER_KEY,
    claim_cluster,
    hold_to_cluster,
)
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MetadataError, PreconditionFailed
from magnetar.metadata.memory import MemoryStore


async def test_processes_that_start_together_agree_on_the_id() -> None:
    clock = SystemClock()
    store = MemoryStore(clock)
    identities = await asyncio.gather(
        *(claim_cluster(store, "blue", clock, f"id-{number}") for number in range(5))
    )
    assert len(set(identities)) == 1
    assert await claim_cluster(store, "blue", clock, "later") == identities[0]
    await store.close()


async def test_a_process_of_another_cluster_is_refused_and_the_setting_is_named() -> None:
    clock = SystemClock()
    store = MemoryStore(clock)
    await claim_cluster(store, "blue", clock, "id")
    with pytest.raises(PreconditionFailed, match=r"'blue'.*'green'.*cluster_name"):
        await claim_cluster(store, "green", clock, "other")
    await store.put(CLUSTER_KEY, b"no json")
    with pytest.raises(MetadataError, match=CLUSTER_KEY):
        await claim_cluster(store, "blue", clock, "id")
    await store.close()


async def test_two_clusters_of_one_name_are_distinguished_by_their_owners() -> None:
    clock = SystemClock()
    store = MemoryStore(clock)
    first = await claim_cluster(store, "blue", clock, "id")  # written by a release without owners
    identities = await asyncio.gather(
        *(claim_cluster(store, "blue", clock, "other", "ns-1/blue") for _ in range(5))
    )
    assert set(identities) == {msgspec.structs.replace(first, owner="ns-1/blue")}
    assert await claim_cluster(store, "blue", clock, "other") == identities[0], (
        "a tool without an owner is accepted"
    )
    with pytest.raises(PreconditionFailed, match=r"ns-1/blue.*ns-2/blue.*metadata_root"):
        await claim_cluster(store, "blue", clock, "other", "ns-2/blue")
    await store.close()


async def test_disks_of_another_cluster_are_refused(tmp_path: Path) -> None:
    clock = SystemClock()
    stores = [MemoryStore(clock), MemoryStore(clock)]
    own, other = [await claim_cluster(s, "blue", clock, f"id-{i}") for i, s in enumerate(stores)]
    hold_to_cluster(tmp_path, own)
    hold_to_cluster(tmp_path, own)
    with pytest.raises(PreconditionFailed, match=r"id-0.*id-1.*data_dir"):
        hold_to_cluster(tmp_path, other)
    (tmp_path / CLUSTER_FILE).write_text("torn")
    with pytest.raises(PreconditionFailed, match=CLUSTER_FILE):
        hold_to_cluster(tmp_path, own)
    for store in stores:
        await store.close()
