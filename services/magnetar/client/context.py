"""What the parts of one client share: its loop, connections, lookups, memory, clock and tasks."""

import asyncio
import itertools
from random import Random

from magnetar.client.limits import Permits
from magnetar.client.network.lookup import Lookup
from magnetar.client.network.pool import ConnectionPool
from magnetar.client.options import ClientOptions
from magnetar.core.clock import Clock
from magnetar.core.tasks import TaskSet


class Context:
    """The shared state of a client; created when the client is first used."""

    def __init__(
        self,
        options: ClientOptions,
        pool: ConnectionPool,
        lookup: Lookup,
        tasks: TaskSet,
        clock: Clock,
        random: Random,
    ) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.pool = pool
        self.lookup = lookup
        self.tasks = tasks
        self.clock = clock
        self.random = random
        self.memory = Permits(options.memory_limit_bytes)
        self.received_bytes = 0
        """Messages in the receiver queues of all consumers."""
        self._producer_ids = itertools.count()
        self._consumer_ids = itertools.count()

    def next_producer_id(self) -> int:
        """Returns a producer id that this client did not use."""
        return next(self._producer_ids)

    def next_consumer_id(self) -> int:
        """Returns a consumer id that this client did not use."""
        return next(self._consumer_ids)
