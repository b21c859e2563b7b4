"""Which cluster a metadata store is of: drawn by the first process that comes, held by all others.

`/cluster` names the cluster and an id that was drawn once. A process that is configured for another
cluster is refused, and so is a bookie whose disks served another one: ledger ids are given out per
cluster, so entries of two would mix.
"""

import os
import uuid
from pathlib import Path
from typing import Final

import msgspec

from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError, PreconditionFailed
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore

CLUSTER_KEY: Final = "/cluster"
CLUSTER_FILE: Final = "cluster.json"
CLAIM_TRIES: Final = 10
"""Each failed one is another process's successful write; there are two writes at most."""


class ClusterIdentity(msgspec.Struct, frozen=True):
    """A cluster's name, and which one of that name."""

    name: str
    cluster_id: str
    created_ms: int
    owner: str = ""
    """The setting cluster_owner of the first process that had one; empty: none had."""


async def claim_cluster(
    store: MetadataStore, name: str, clock: Clock, cluster_id: str, owner: str = ""
) -> ClusterIdentity:
    """The store's cluster; if it has none, it becomes the cluster of this name, id and owner.

    Raises PreconditionFailed if it has another name, or both have an owner and these differ: two
    clusters of one name below one path would share ledger ids and bookies.
    """
    mine = ClusterIdentity(name, cluster_id, clock.now_ms(), owner)
    for _ in range(CLAIM_TRIES):
        found = await _claimed(store, mine)
        if found is not None:
            return found
    raise MetadataError(f"{CLUSTER_KEY} changes all the time")


async def _claimed(store: MetadataStore, mine: ClusterIdentity) -> ClusterIdentity | None:
    """None if another process wrote at the same time."""
    record = await store.get(CLUSTER_KEY)
    if record is None:
        return await _put(store, mine, ABSENT)
    try:
        found = msgspec.json.decode(record.value, type=ClusterIdentity)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{CLUSTER_KEY} holds no cluster's identity: {error}") from error
    if found.name != mine.name:
        raise PreconditionFailed(
            f"the metadata store is of cluster '{found.name}', and cluster_name is '{mine.name}': "
            "one of metadata_url, metadata_root and cluster_name is wrong"
        )
    if not mine.owner or found.owner == mine.owner:
        return found
    if found.owner:
        raise PreconditionFailed(
            f"the metadata store is of cluster '{found.name}' of {found.owner}, and cluster_owner "
            f"is {mine.owner}: give each cluster that shares an etcd a path of its own, as "
            "metadata_root, or in Kubernetes as etcd.external.prefix (the chart's metadataPrefix)"
        )
    return await _put(store, msgspec.structs.replace(found, owner=mine.owner), record.revision)


async def _put(store: MetadataStore, one: ClusterIdentity, expected: int) -> ClusterIdentity | None:
    try:
        await store.put(CLUSTER_KEY, msgspec.json.encode(one), expected=expected)
    except BadRevision:
        return None
    return one


def hold_to_cluster(data_dir: Path, cluster: ClusterIdentity) -> None:
    """Writes the cluster down beside a bookie's data, or holds it to what stands there.

    Raises PreconditionFailed where the data is of another cluster. Blocks.
    """
    path = data_dir / CLUSTER_FILE
    if path.exists():
        try:
            found = msgspec.json.decode(path.read_bytes(), type=ClusterIdentity)
        except msgspec.MsgspecError as error:
            raise PreconditionFailed(f"{path} cannot be read: {error}") from error
        if found.cluster_id != cluster.cluster_id:
            raise PreconditionFailed(
                f"{data_dir} holds the data of cluster '{found.name}' ({found.cluster_id}), and "
                f"the metadata store is of '{cluster.name}' ({cluster.cluster_id}): "
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
    """For a cluster that may turn out to be new."""
    return str(uuid.uuid4())
