"""The table view: the latest value of each key of a topic, kept up to date.

It reads the topic from its beginning, compacted if it is persistent, and is open once it has read
everything that was there. A message without a value deletes its key; one without a key is ignored.
"""

import asyncio
import contextlib
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from magnetar.client.consumer.reader import Reader
from magnetar.client.consumer.subscription import StartPosition
from magnetar.client.context import Context
from magnetar.client.errors import ClientError, OperationTimeout, SchemaFailed
from magnetar.client.message import Message
from magnetar.client.message_id import EARLIEST
from magnetar.client.options import ReaderOptions
from magnetar.client.schema.api import Schema
from magnetar.core.log import get_logger
from magnetar.core.names import parse_topic

if TYPE_CHECKING:
    from types import TracebackType

log = get_logger("magnetar.client.table_view")

T = TypeVar("T")
Listener = Callable[[str, Any], object]

RECHECK_S: Final = 1.0
"""After that without a message, the view asks again whether there is one: the last one may have
been deleted since, or may have no key."""


class TableView(Generic[T]):
    """A read-only mapping of keys to their latest values."""

    def __init__(
        self, context: Context, topic: str, schema: Schema[T], subscription: str = ""
    ) -> None:
        self.topic = topic
        self._context = context
        self._values: dict[str, T] = {}
        self._listeners: list[Listener] = []
        self._changed = asyncio.Event()
        options = ReaderOptions(
            read_compacted=parse_topic(topic).persistent, subscription=subscription
        )
        self._reader: Reader[T] = Reader(context, [topic], StartPosition(EARLIEST), schema, options)
        self._task: asyncio.Task[Any] | None = None
        self.failure: ClientError | None = None
        """Why the view is no longer kept up to date; None while it is."""
        self.on_close: Callable[[Any], object] | None = None

    async def open(self) -> None:
        """Reads what the topic has."""
        await self._reader.open()
        try:
            while await self._reader.has_message_available():
                with contextlib.suppress(OperationTimeout):  # it was deleted meanwhile
                    self._apply(await self._reader.read(RECHECK_S))
        except BaseException:
            await self._reader.close()
            raise
        self._task = self._context.tasks.start(self._follow(), f"table view of {self.topic}")

    async def _follow(self) -> None:
        try:
            async for message in self._reader:
                self._apply(message)
        except ClientError as error:
            self.failure = error
            log.error("table view ended", topic=self.topic, error=str(error))
        except Exception as error:  # noqa: BLE001  # a schema of users may raise anything
            self.failure = SchemaFailed(f"A value cannot be decoded: {error!r}", topic=self.topic)
            log.error("table view ended", topic=self.topic, error=repr(error))
        finally:
            self._changed.set()  # `refresh` finds out that nothing more comes

    def _apply(self, message: Message[T]) -> None:
        key = message.key
        if key is None:
            return
        if message.is_null or not message.data:
            self._values.pop(key, None)
            value = None
        else:
            value = message.value
            self._values[key] = value
        for listener in self._listeners:
            try:
                listener(key, value)
            except Exception as error:  # noqa: BLE001  # users' code may raise anything
                log.error("listener failed", topic=self.topic, error=repr(error))
        self._changed.set()

    # -- read ----------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> T:
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, key: str, default: T | None = None) -> T | None:
        """Returns the value of a key, or `default`."""
        return self._values.get(key, default)

    def keys(self) -> KeysView[str]:
        """The keys."""
        return self._values.keys()

    def values(self) -> ValuesView[T]:
        """The values."""
        return self._values.values()

    def items(self) -> ItemsView[str, T]:
        """The keys with their values."""
        return self._values.items()

    def listen(self, listener: Listener, *, existing: bool = False) -> None:
        """Calls `listener(key, value)` for each change; a value of None deletes the key.

        With `existing`, it is called with all present keys first.
        """
        if existing:
            for key, value in list(self._values.items()):
                listener(key, value)
        self._listeners.append(listener)

    async def refresh(self) -> None:
        """Waits until everything that the topic has now is in the view."""
        while self.failure is None and await self._reader.has_message_available():
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S):
                    await self._changed.wait()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Ends the view; its values stay readable."""
        if self.on_close is not None:
            self.on_close(self)
        await self._reader.close()
        if self._task is not None:
            self._task.cancel()

    def moved(self) -> None:
        """Ends the view: the client leaves the cluster that it reads."""
        self._reader.moved()

    def abandon(self, error: ClientError) -> None:
        """Refuses everything from now on, without a word to the broker."""
        self.failure = error

    async def __aenter__(self) -> "TableView[T]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        await self.close()
