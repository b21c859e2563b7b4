"""The keys of the metadata store that each role of a cluster reads and writes.

`magnetar etcd roles` prints them as commands that create roles in etcd. The password of a bookie
then does not suffice to grant permissions, and that of a job does not suffice to change a topic.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.autorecovery import records as autorecovery
from magnetar.autorecovery.drain import drains
from magnetar.bookie import registration as bookies
from magnetar.bookie.racks import RACKS_KEY
from magnetar.broker import assemble
from magnetar.broker.balance import model as balance
from magnetar.broker.catalog import resources
from magnetar.broker.dynamic import live_settings
from magnetar.broker.ownership import records as ownership
from magnetar.broker.policies.store import TOPIC_POLICIES_PREFIX
from magnetar.broker.schema.registry import SCHEMAS_PREFIX
from magnetar.cluster.identity import CLUSTER_KEY
from magnetar.compaction import records as compaction
from magnetar.ledger.metadata import LEDGER_ID_KEY, LEDGERS_PREFIX
from magnetar.ledger.registered_bookies import WATCHED_PREFIX
from magnetar.managed_ledger.backlog_record import ANALYTICS_PREFIX
from magnetar.managed_ledger.record import CURSORS_PREFIX, MANAGED_LEDGERS_PREFIX
from magnetar.offload import records as offload
from magnetar.offload.trash import TRASH_PREFIX
from magnetar.transactions import records as transactions

READ: Final = "read"
READ_WRITE: Final = "readwrite"


@dataclass(frozen=True, slots=True)
class Permission:
    """The permission for one key, or for all keys with a prefix."""

    key: str
    access: str
    """`read` or `readwrite`, as etcdctl names them."""

    @property
    def prefix(self) -> bool:
        """Whether the permission covers all keys that start with `key`."""
        return self.key.endswith("/") or self.key == WATCHED_PREFIX


def _all(access: str, *keys: str) -> tuple[Permission, ...]:
    return tuple(Permission(key, access) for key in keys)


_OFFLOAD_AND_COMPACTION: Final = _all(
    READ_WRITE,
    offload.OFFLOADS_PREFIX,
    offload.ATTEMPTS_PREFIX,
    offload.REQUESTS_PREFIX,
    TRASH_PREFIX,
    compaction.COMPACTIONS_PREFIX,
    compaction.ATTEMPTS_PREFIX,
    compaction.REQUESTS_PREFIX,
    ANALYTICS_PREFIX,
)
_LEDGERS: Final = _all(READ_WRITE, LEDGERS_PREFIX, LEDGER_ID_KEY)
_MEMBERSHIP: Final = (
    # The first process of a new cluster names it.
    Permission(CLUSTER_KEY, READ_WRITE),
    # One watch covers the live bookies and those that drain.
    Permission(WATCHED_PREFIX, READ),
)
_AUTORECOVERY: Final = (
    *_MEMBERSHIP,
    Permission(LEDGERS_PREFIX, READ_WRITE),
    Permission(LEDGER_ID_KEY, READ),
    *_all(
        READ_WRITE,
        autorecovery.RECORDS_PREFIX,
        autorecovery.LOCKS_PREFIX,
        autorecovery.AUTORECOVERY_PREFIX,
        bookies.KNOWN_PREFIX,
        bookies.DRAINING_PREFIX,
        drains.DRAINS_PREFIX,
        drains.LOCKS_PREFIX,
    ),
)

PERMISSIONS: Final[dict[str, tuple[Permission, ...]]] = {
    "broker": (
        *_MEMBERSHIP,
        *_LEDGERS,
        *_OFFLOAD_AND_COMPACTION,
        *_all(
            READ_WRITE,
            resources.TENANTS_PREFIX,
            resources.NAMESPACES_PREFIX,
            resources.CLUSTERS_PREFIX,
            resources.PARTITIONED_PREFIX,
            TOPIC_POLICIES_PREFIX,
            live_settings.PREFIX,
            RACKS_KEY,
            SCHEMAS_PREFIX,
            MANAGED_LEDGERS_PREFIX,
            CURSORS_PREFIX,
            ownership.BROKERS_PREFIX,
            ownership.OWNERSHIP_PREFIX,
            balance.REPORTS_PREFIX,
            balance.BALANCE_PREFIX,
            transactions.PREFIX,
            assemble.STARTS_KEY,
            offload.DEFAULTS_KEY,
            compaction.JOBS_PREFIX,
            # Drains are requested and cancelled over the admin REST.
            bookies.KNOWN_PREFIX,
            bookies.DRAINING_PREFIX,
            drains.DRAINS_PREFIX,
        ),
        *_all(
            READ,
            offload.JOBS_PREFIX,
            autorecovery.RECORDS_PREFIX,
            autorecovery.LOCKS_PREFIX,
            autorecovery.AUTORECOVERY_PREFIX,
        ),
    ),
    # A bookie runs autorecovery unless `autorecovery` is off.
    "bookie": (*_AUTORECOVERY, Permission(bookies.BOOKIES_PREFIX, READ_WRITE)),
    "autorecovery": _AUTORECOVERY,
    "job": (
        *_OFFLOAD_AND_COMPACTION,
        *_all(READ_WRITE, offload.JOBS_PREFIX, compaction.JOBS_PREFIX),
        *_all(
            READ,
            CLUSTER_KEY,
            WATCHED_PREFIX,
            LEDGERS_PREFIX,
            LEDGER_ID_KEY,
            MANAGED_LEDGERS_PREFIX,
            CURSORS_PREFIX,
            # Messages of open and of aborted transactions are not read.
            transactions.PREFIX,
            resources.NAMESPACES_PREFIX,
            resources.PARTITIONED_PREFIX,
            TOPIC_POLICIES_PREFIX,
            SCHEMAS_PREFIX,
            offload.DEFAULTS_KEY,
        ),
    ),
}
"""The permissions by role. The operator and the admin clients never connect to etcd."""


def etcdctl_commands(role: str, root: str) -> list[str]:
    """Returns the etcdctl commands that create a role under the root of a cluster's keys."""
    name = f"magnetar-{role}"
    return [
        f"etcdctl role add {name}",
        *(
            f"etcdctl role grant-permission {name} {permission.access} "
            f"{'--prefix ' if permission.prefix else ''}{root}{permission.key}"
            for permission in PERMISSIONS[role]
        ),
    ]
