"""The client: creates producers, consumers, readers, table views and transactions.

    async with Client("pulsar://localhost:6650") as client:
        async with client.producer("orders") as producer:
            await producer.send(b"hello", key="1")

A client belongs to the event loop in which it is first used, and connects on demand. The parts
that need protobuf are imported when it is first used, so importing this module is cheap.
"""

import asyncio
import os
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, Unpack, overload

from magnetar.client.errors import (
    AlreadyClosed,
    ClientError,
    InvalidConfiguration,
    UsedAfterFork,
)
from magnetar.client.opening import Opening
from magnetar.client.options import (
    ClientKeywords,
    ClientOptions,
    ConsumerKeywords,
    ConsumerOptions,
    ProducerKeywords,
    ProducerOptions,
    ReaderKeywords,
    ReaderOptions,
    build,
)
from magnetar.client.schema.api import BYTES, Schema

if TYPE_CHECKING:
    from magnetar.client.auth.api import Authentication
    from magnetar.client.consumer.consumer import Consumer
    from magnetar.client.consumer.reader import Reader
    from magnetar.client.consumer.table_view import TableView
    from magnetar.client.context import Context
    from magnetar.client.message_id import MessageId
    from magnetar.client.producer.producer import Producer
    from magnetar.client.transaction.coordinators import Coordinators
    from magnetar.client.transaction.transaction import OpeningTransaction, Transaction

TRANSACTION_TIMEOUT_S: Final = 60.0
"""How long a transaction may stay open."""

T = TypeVar("T")


class _Owned(Protocol):
    """A producer, consumer, reader or table view."""

    on_close: Any

    async def open(self) -> None:
        """Attaches to the topics."""

    async def close(self) -> None:
        """Releases what the object holds."""

    def abandon(self, error: ClientError) -> None:
        """Refuses everything from now on."""

    def moved(self) -> None:
        """Forgets the cluster that the client leaves."""


Owned = TypeVar("Owned", bound=_Owned)


class Client:
    """A connection to a cluster, shared by any number of producers and consumers."""

    def __init__(self, service_url: str, **options: Unpack[ClientKeywords]) -> None:
        """`service_url`: `pulsar://HOST:PORT[,HOST:PORT]`, `pulsar+ssl://`, `http://`, `https://`.

        `options` are the fields of `ClientOptions`. Raises InvalidConfiguration.
        """
        from magnetar.client.network.service_urls import parse_service_url

        self.service_url = service_url
        self.options: ClientOptions = build(ClientOptions, options)
        self._clusters = [parse_service_url(service_url)]
        if self.options.failover is not None:
            from magnetar.client.failover import addresses_of

            self._clusters = addresses_of(service_url, self.options.failover)
        self._context: Context | None = None
        self._coordinators: Coordinators | None = None
        self._owned: dict[Any, None] = {}
        self._pid = os.getpid()
        self._closed = False
        _clients.add(self)

    @classmethod
    def from_url(cls, url: str, **options: Unpack[ClientKeywords]) -> "Client":
        """Returns a client for a URL with options: `pulsar+ssl://HOST:PORT?token=file:/path`.

        `docs/use/client.md` lists the options. Raises InvalidConfiguration.
        """
        from magnetar.client.environment import parse_url

        service_url, parsed = parse_url(url)
        parsed.update(options)
        return cls(service_url, **parsed)

    @classmethod
    def from_env(
        cls, environment: Mapping[str, str] | None = None, **options: Unpack[ClientKeywords]
    ) -> "Client":
        """Returns a client for the variables MAGNETAR_URL, MAGNETAR_TOKEN and the like."""
        from magnetar.client.environment import parse_environment

        service_url, parsed = parse_environment(os.environ if environment is None else environment)
        parsed.update(options)
        return cls(service_url, **parsed)

    # -- create --------------------------------------------------------------------------------

    @overload
    def producer(
        self, topic: str, **options: Unpack[ProducerKeywords]
    ) -> "Opening[Producer[bytes]]": ...

    @overload
    def producer(
        self, topic: str, *, schema: Schema[T], **options: Unpack[ProducerKeywords]
    ) -> "Opening[Producer[T]]": ...

    def producer(
        self, topic: str, *, schema: Schema[Any] = BYTES, **options: Unpack[ProducerKeywords]
    ) -> "Opening[Producer[Any]]":
        """Creates a producer; `options` are the fields of `ProducerOptions`."""
        settings: ProducerOptions = build(ProducerOptions, options)

        async def open_producer() -> "Producer[Any]":
            from magnetar.client.producer.producer import Producer

            return await self._opened(Producer(self._ready(), _full(topic), schema, settings))

        return Opening(open_producer)

    @overload
    def consumer(
        self, topics: str | Iterable[str], subscription: str, **options: Unpack[ConsumerKeywords]
    ) -> "Opening[Consumer[bytes]]": ...

    @overload
    def consumer(
        self,
        topics: str | Iterable[str],
        subscription: str,
        *,
        schema: Schema[T],
        **options: Unpack[ConsumerKeywords],
    ) -> "Opening[Consumer[T]]": ...

    def consumer(
        self,
        topics: str | Iterable[str],
        subscription: str,
        *,
        schema: Schema[Any] = BYTES,
        **options: Unpack[ConsumerKeywords],
    ) -> "Opening[Consumer[Any]]":
        """Subscribes to one topic or several; `options` are the fields of `ConsumerOptions`."""
        settings: ConsumerOptions = build(ConsumerOptions, options)
        names = _all_full(topics)
        _check_subscription(subscription)

        async def open_consumer() -> "Consumer[Any]":
            from magnetar.client.consumer.consumer import Consumer

            context = self._ready()
            return await self._opened(Consumer(context, names, subscription, schema, settings))

        return Opening(open_consumer)

    @overload
    def pattern_consumer(
        self, pattern: str, subscription: str, **options: Unpack[ConsumerKeywords]
    ) -> "Opening[Consumer[bytes]]": ...

    @overload
    def pattern_consumer(
        self,
        pattern: str,
        subscription: str,
        *,
        schema: Schema[T],
        **options: Unpack[ConsumerKeywords],
    ) -> "Opening[Consumer[T]]": ...

    def pattern_consumer(
        self,
        pattern: str,
        subscription: str,
        *,
        schema: Schema[Any] = BYTES,
        **options: Unpack[ConsumerKeywords],
    ) -> "Opening[Consumer[Any]]":
        """Subscribes to all topics of a namespace that match `TENANT/NAMESPACE/REGEX`.

        Topics that are created later are added, deleted ones are removed.
        """
        settings: ConsumerOptions = build(ConsumerOptions, options)
        _check_subscription(subscription)

        async def open_consumer() -> "Consumer[Any]":
            from magnetar.client.consumer.consumer import Consumer
            from magnetar.client.consumer.pattern import PatternWatch, TopicPattern

            context = self._ready()
            watch = PatternWatch(context, TopicPattern(pattern), settings)
            return await self._opened(
                Consumer(context, [], subscription, schema, settings, pattern=watch)
            )

        return Opening(open_consumer)

    @overload
    def reader(
        self,
        topics: str | Iterable[str],
        start: "MessageId | int | None" = None,
        **options: Unpack[ReaderKeywords],
    ) -> "Opening[Reader[bytes]]": ...

    @overload
    def reader(
        self,
        topics: str | Iterable[str],
        start: "MessageId | int | None" = None,
        *,
        schema: Schema[T],
        **options: Unpack[ReaderKeywords],
    ) -> "Opening[Reader[T]]": ...

    def reader(
        self,
        topics: str | Iterable[str],
        start: "MessageId | int | None" = None,
        *,
        schema: Schema[Any] = BYTES,
        **options: Unpack[ReaderKeywords],
    ) -> "Opening[Reader[Any]]":
        """Reads topics from `start`: a message id, a number of seconds ago, or None: the beginning.

        The first message is the one after the id, or with `inclusive` the one with the id.
        """
        settings: ReaderOptions = build(ReaderOptions, options)
        names = _all_full(topics)

        async def open_reader() -> "Reader[Any]":
            from magnetar.client.consumer.reader import Reader
            from magnetar.client.consumer.subscription import StartPosition
            from magnetar.client.message_id import EARLIEST

            if isinstance(start, int):
                position = StartPosition(EARLIEST, rollback_s=start)
            else:
                position = StartPosition(start or EARLIEST, inclusive=settings.inclusive)
            context = self._ready()
            return await self._opened(Reader(context, names, position, schema, settings))

        return Opening(open_reader)

    @overload
    def table_view(self, topic: str, *, subscription: str = "") -> "Opening[TableView[bytes]]": ...

    @overload
    def table_view(
        self, topic: str, *, schema: Schema[T], subscription: str = ""
    ) -> "Opening[TableView[T]]": ...

    def table_view(
        self, topic: str, *, schema: Schema[Any] = BYTES, subscription: str = ""
    ) -> "Opening[TableView[Any]]":
        """Keeps the latest value of each key of a topic.

        `subscription` is the name of its subscription, which is not durable; empty for a unique
        one.
        """
        name = _full(topic)

        async def open_view() -> "TableView[Any]":
            from magnetar.client.consumer.table_view import TableView

            return await self._opened(TableView(self._ready(), name, schema, subscription))

        return Opening(open_view)

    def transaction(self, timeout_s: float = TRANSACTION_TIMEOUT_S) -> "OpeningTransaction":
        """Begins a transaction, which the coordinator aborts after `timeout_s`."""
        from magnetar.client.transaction.transaction import OpeningTransaction

        if timeout_s <= 0:
            raise InvalidConfiguration(f"timeout_s must be greater than 0, not {timeout_s}")

        async def begin() -> "Transaction":
            from magnetar.client.transaction.coordinators import Coordinators
            from magnetar.client.transaction.transaction import Transaction

            context = self._ready()
            if self._coordinators is None:
                self._coordinators = Coordinators(context)
            wire_id = await self._coordinators.begin(timeout_s)
            return Transaction(self._coordinators, wire_id, timeout_s)

        return OpeningTransaction(begin)

    async def partitions(self, topic: str) -> list[str]:
        """Returns the topics of a topic's partitions; only its own name if it has none."""
        from magnetar.core.names import parse_topic

        full = _full(topic)
        count = await self._ready().lookup.partitions(full, create=False)
        if not count:
            return [full]
        return [str(parse_topic(full).partition(index)) for index in range(count)]

    # -- lifecycle -----------------------------------------------------------------------------

    def _ready(self) -> "Context":
        """Returns the shared state; raises if the client cannot be used here."""
        if self._pid != os.getpid():
            raise UsedAfterFork(f"The client was created in process {self._pid}")
        if self._closed:
            raise AlreadyClosed("The client is closed")
        if self._context is None:
            from magnetar.client.assemble import assemble

            self._context = assemble(self.options, self._clusters, self._moved)
        elif self._context.loop is not asyncio.get_running_loop():
            raise ClientError("The client belongs to another event loop: create a client in this")
        return self._context

    def _moved(self) -> None:
        if self._coordinators is not None:
            self._coordinators.left, self._coordinators = True, None
        for owned in list(self._owned):
            owned.moved()

    async def _opened(self, owned: Owned) -> Owned:
        await owned.open()
        if self._closed:
            await owned.close()
            raise AlreadyClosed("The client was closed meanwhile")
        self._owned[owned] = None
        owned.on_close = lambda closed: self._owned.pop(closed, None)
        return owned

    async def close(self) -> None:
        """Closes all producers and consumers, then the connections; may be called again."""
        if self._closed:
            return
        self._closed = True
        context = self._context
        if context is None or self._pid != os.getpid():
            return
        owned = list(self._owned)
        try:
            if owned:
                await asyncio.gather(*(part.close() for part in owned), return_exceptions=True)
        finally:
            try:
                await context.tasks.stop()
            finally:
                await context.pool.close()
            for auth in self._authentications():
                await auth.close()

    def _authentications(self) -> "list[Authentication]":
        """Returns those of all clusters, each once."""
        given = [self.options.auth]
        if self.options.failover is not None:
            from magnetar.client.failover import own_authentications

            given += own_authentications(self.options.failover)
        return list({id(auth): auth for auth in given if auth is not None}.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _full(topic: str) -> str:
    """Returns the full name of a topic; raises InvalidTopicName."""
    from magnetar.client.errors import InvalidTopicName
    from magnetar.core import errors
    from magnetar.core.names import parse_topic

    try:
        return str(parse_topic(topic))
    except errors.InvalidTopicName as error:
        raise InvalidTopicName(error.message, topic=topic) from error


def _all_full(topics: str | Iterable[str]) -> list[str]:
    names = [_full(topics)] if isinstance(topics, str) else [_full(topic) for topic in topics]
    if not names:
        raise InvalidConfiguration("Name at least one topic")
    return list(dict.fromkeys(names))


def _check_subscription(subscription: str) -> None:
    if not subscription:
        raise InvalidConfiguration("The name of the subscription is empty")


_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _after_fork() -> None:
    """Refuses every use of the parent's clients in a forked child."""
    for client in list(_clients):
        error = UsedAfterFork("The client was created in the parent process")
        for owned in client._owned:
            owned.abandon(error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
