"""A table view as a cache: the latest price of each item, in the memory of each process.

Reads cost no request. A compacted topic keeps the latest message of each key, so a new process
reads only as much as there are items. Without asyncio.
"""

from collections.abc import Callable

from magnetar.client.schema import DoubleSchema
from magnetar.client.sync import Client, TableView


class Prices:
    """The prices of a topic."""

    def __init__(self, client: Client, topic: str) -> None:
        self._view: TableView[float] = client.table_view(topic, schema=DoubleSchema())
        self._producer = client.producer(topic, schema=DoubleSchema())

    def get(self, item: str) -> float | None:
        """Returns the price that this process knows; None for an unknown item."""
        return self._view.get(item)

    def set(self, item: str, price: float) -> None:
        """Changes a price for all processes; they know it a moment later."""
        self._producer.send(price, key=item)

    def remove(self, item: str) -> None:
        """Removes an item for all processes."""
        self._producer.send(None, key=item)

    def watch(self, changed: Callable[[str, float | None], object]) -> None:
        """Calls a function with each change; None is a removed item."""
        self._view.listen(changed)

    def refresh(self) -> None:
        """Waits until this process knows every change that was made before."""
        self._view.refresh()

    def close(self) -> None:
        """Ends the view."""
        self._producer.close()
        self._view.close()
