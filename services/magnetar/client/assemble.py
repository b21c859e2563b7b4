"""Builds the parts that a client's producers and consumers share."""

import random
from collections.abc import Sequence

from magnetar.client.auth.api import NoAuthentication
from magnetar.client.context import Context
from magnetar.client.errors import InvalidConfiguration
from magnetar.client.network.lookup import BinaryLookup, LookupSettings
from magnetar.client.network.pool import ConnectionPool, PoolSettings
from magnetar.client.network.service_urls import Address, ServiceUrls
from magnetar.client.network.tls import Tls
from magnetar.client.options import ClientOptions
from magnetar.core.clock import SystemClock
from magnetar.core.tasks import TaskSet


def assemble(options: ClientOptions, addresses: Sequence[Address]) -> Context:
    """Returns the shared state of a client, without connecting."""
    tasks = TaskSet("client")
    auth = options.auth or NoAuthentication()
    generator = random.Random()
    pool = ConnectionPool(
        PoolSettings(
            options.tls or Tls(),
            auth,
            options.connect_timeout_s,
            options.keep_alive_s,
            options.connections_per_broker,
        ),
        tasks,
    )
    if addresses[0].scheme not in ("pulsar", "pulsar+ssl"):
        raise InvalidConfiguration(
            "HTTP service URLs are not supported yet: use pulsar:// or pulsar+ssl://"
        )
    lookup = BinaryLookup(
        ServiceUrls(addresses, generator),
        pool,
        LookupSettings(
            options.operation_timeout_s, options.listener, generator, options.backoff_max_s
        ),
    )
    return Context(options, pool, lookup, tasks, SystemClock(), generator)
