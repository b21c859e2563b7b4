"""The table view of the official client, on the blocking client."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from magnetar.client import sync
from magnetar.pulsar.checks import check_type
from magnetar.pulsar.outcomes import translated
from magnetar.pulsar.schema.schema import BytesSchema, Schema, StringSchema

if TYPE_CHECKING:
    from magnetar.pulsar.client import Client

_CAN_BE_EMPTY: Final = (BytesSchema, StringSchema)
Listener = Callable[[str, Any], object]


class TableView:
    """The latest value of each key of a topic."""

    def __init__(
        self,
        client: "Client",
        view: "sync.TableView[bytes]",
        topic: str,
        subscription: str | None,
        schema: Schema,
    ) -> None:
        self._client = client
        self._view = view
        self._topic = topic
        self._subscription = subscription
        self._schema = schema

    def get(self, key: str) -> Any:
        """Returns the value of a key; None if there is none."""
        check_type(str, key, "key")
        data = self._view.get(key)
        return None if data is None else self._schema.decode(data)

    def for_each(self, callback: Listener) -> None:
        """Calls a function with each key and value."""
        for key, data in self._view.items():
            callback(key, self._schema.decode(data))

    def for_each_and_listen(self, callback: Listener) -> None:
        """Calls a function with each key and value, then with each change, in a thread.

        The value of a deleted key is empty if values are text or bytes, else None. Returns once
        the keys that are there were handed over.
        """
        thread = self._client._listener_thread()
        deleted = self._schema.decode(b"") if isinstance(self._schema, _CAN_BE_EMPTY) else None

        def changed(key: str, data: bytes | None) -> None:
            thread.post(lambda: callback(key, self._schema.decode(data) if data else deleted))

        with translated():
            self._view.listen(changed, existing=True)
        handed_over = threading.Event()
        thread.post(handed_over.set)
        if not thread.inside:
            handed_over.wait()

    def close(self) -> None:
        """Ends the view."""
        with translated():
            self._view.close()

    def __len__(self) -> int:
        return len(self._view)

    def __str__(self) -> str:
        subscription = "" if self._subscription is None else f", subscription={self._subscription}"
        return f"TableView(topic={self._topic}{subscription})"

    __repr__ = __str__
