"""Builds the parts that a client's producers and consumers share."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from magnetar.client.auth.api import NoAuthentication
from magnetar.client.context import Context
from magnetar.client.network.access import Access, Target
from magnetar.client.network.lookup import BinaryLookup, Lookup, LookupSettings
from magnetar.client.network.pool import ConnectionPool, PoolSettings
from magnetar.client.network.service_urls import Address, ServiceUrls
from magnetar.client.network.tls import Tls
from magnetar.client.options import ClientOptions
from magnetar.core.clock import SystemClock
from magnetar.core.tasks import TaskSet

if TYPE_CHECKING:
    from magnetar.client.failover import Failover


def assemble(
    options: ClientOptions, clusters: Sequence[list[Address]], moved: Callable[[], None]
) -> Context:
    """Returns the shared state of a client, without connecting.

    `clusters` are the addresses of all clusters, the primary's first; `moved` is called when the
    client leaves one.
    """
    tasks = TaskSet("client")
    own = Access(options.tls or Tls(), options.auth or NoAuthentication())
    generator = random.Random()
    pool = ConnectionPool(
        PoolSettings(
            options.connect_timeout_s, options.keep_alive_s, options.connections_per_broker
        ),
        own,
        tasks,
    )
    settings = LookupSettings(
        options.operation_timeout_s, options.listener, generator, options.backoff_max_s
    )
    urls = ServiceUrls(clusters[0], generator)
    lookup: Lookup
    if urls.first.http:
        from magnetar.client.network.http_lookup import HttpLookup

        lookup = HttpLookup(urls, pool, settings)
    else:
        lookup = BinaryLookup(urls, pool, settings)
    if options.failover is not None:
        from magnetar.client.network.failover_watch import Switch, watch

        switch = Switch(urls, pool, moved)
        targets = [Target(clusters[0], own), *_secondaries(options.failover, clusters[1:], own)]
        tasks.start(watch(options.failover, targets, switch, pool), "cluster failover")
    return Context(options, pool, lookup, tasks, SystemClock(), generator)


def _secondaries(
    failover: "Failover", clusters: Sequence[list[Address]], own: Access
) -> Iterator[Target]:
    from magnetar.client.failover import AutoFailover, Cluster

    named = failover.secondaries if isinstance(failover, AutoFailover) else []
    for cluster, addresses in zip(named, clusters, strict=True):
        access = own
        if isinstance(cluster, Cluster):
            access = Access(cluster.tls or own.tls, cluster.auth or own.auth)
        yield Target(addresses, access)
