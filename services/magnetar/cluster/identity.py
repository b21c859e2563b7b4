"""The identity of a cluster: the first process writes it, all others are checked against it.

`/cluster` has the cluster's name and an id that was generated once. A process that is configured
for another cluster is refused, and so is a bookie whose disks served another: ledger ids are
allocated per cluster, so entries of two clusters would mix.
"""

import os
import uuid
from pathlib import Path
from typing import Final

import msgspec

from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError, PreconditionFailed
from magnetar.metadata.records import UNDECODABLE
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore

CLUSTER_KEY: Final = "/cluster"
CLUSTER_FILE: Final = "cluster.json"
CLAIM_TRIES: Final = 10
"""A try fails if another process wrote in between; a cluster has two such writes at most."""


class ClusterIdentity(msgspec.Struct, frozen=True):
    """The record of `/cluster`: the cluster's name, its id, and its owner."""

    name: str
    cluster_id: str
    created_ms: int
    owner: str = ""
    """The setting `cluster_owner` of the first process that set it; empty if none did."""


async def claim_cluster(
    store: MetadataStore, name: str, clock: Clock, cluster_id: str, owner: str = ""
) -> ClusterIdentity:
    """Returns the store's cluster; a store without one gets the cluster of this name, id and owner.

    Raises PreconditionFailed if the names differ, or both have an owner and these differ: two
    clusters of one name below one path would share ledger ids and bookies.
    """
    mine = ClusterIdentity(name, cluster_id, clock.now_ms(), owner)
    for _ in range(CLAIM_TRIES):
        identity = await _claimed(store, mine)
        if identity is not None:
            return identity
    raise MetadataError(f"{CLUSTER_KEY} kept changing")


async def _claimed(store: MetadataStore, mine: ClusterIdentity) -> ClusterIdentity | None:
    """Returns None if another process wrote at the same time."""
    record = await store.get(CLUSTER_KEY)
    if record is None:
        return await _put(store, mine, ABSENT)
    try:
        current = msgspec.json.decode(record.value, type=ClusterIdentity)
    except UNDECODABLE as error:
        raise MetadataError(f"{CLUSTER_KEY} holds no cluster's identity: {error}") from error
    if current.name != mine.name:
        raise PreconditionFailed(
            f"the metadata store is of cluster '{current.name}', and cluster_name is "
            f"'{mine.name}': one of metadata_url, metadata_root and cluster_name is wrong"
        )
    if not mine.owner or current.owner == mine.owner:
        return current
    if current.owner:
        raise PreconditionFailed(
            f"the metadata store is of cluster '{current.name}' of {current.owner}, and "
            f"cluster_owner is {mine.owner}: give each cluster that shares an etcd a path of its "
            "own, as metadata_root, or in Kubernetes as etcd.external.prefix (the chart's "
            "metadataPrefix)"
        )
    return await _put(store, msgspec.structs.replace(current, owner=mine.owner), record.revision)


async def _put(
    store: MetadataStore, identity: ClusterIdentity, expected: int
) -> ClusterIdentity | None:
    try:
        await store.put(CLUSTER_KEY, msgspec.json.encode(identity), expected=expected)
    except BadRevision:
        return None
    return identity


def hold_to_cluster(data_dir: Path, cluster: ClusterIdentity) -> None:
    """Writes the cluster's identity beside a bookie's data, or checks it against the one there.

    Raises PreconditionFailed if the data belongs to another cluster. Blocks.
    """
    path = data_dir / CLUSTER_FILE
    if path.exists():
        try:
            current = msgspec.json.decode(path.read_bytes(), type=ClusterIdentity)
        except UNDECODABLE as error:
            raise PreconditionFailed(f"{path} cannot be read: {error}") from error
        if current.cluster_id != cluster.cluster_id:
            raise PreconditionFailed(
                f"{data_dir} holds the data of cluster '{current.name}' ({current.cluster_id}), "
                f"and the metadata store is of '{cluster.name}' ({cluster.cluster_id}): "
                "one of data_dir, metadata_url and metadata_root is wrong"
            )
        return
    draft = path.with_name(f"{CLUSTER_FILE}.new")
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(cluster) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    directory = os.open(data_dir, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def new_cluster_id() -> str:
    """Returns a random id, for a cluster that may be new."""
    return str(uuid.uuid4())
