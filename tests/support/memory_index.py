"""An index store in memory, for simulations and tests."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from magnetar.bookie.index.store import Batch, Pair


class MemoryIndexStore:
    """An index store in memory; `synced` is what a simulated power cut leaves."""

    def __init__(self, synced: dict[bytes, bytes] | None = None) -> None:
        self.generation = 0
        self.synced = dict(synced or {})
        self._data = dict(self.synced)
        self._keys = sorted(self._data)

    def get(self, key: bytes) -> bytes | None:
        return self._data.get(key)

    def last_at_or_before(self, key: bytes) -> Pair | None:
        index = bisect_right(self._keys, key) - 1
        if index < 0:
            return None
        nearest = self._keys[index]
        return nearest, self._data[nearest]

    def scan(self, begin: bytes, end: bytes) -> Iterator[Pair]:
        keys = self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]
        return iter([(key, self._data[key]) for key in keys])

    def write(self, batch: Batch) -> None:
        data = dict(self._data)
        for begin, end in batch.ranges:
            for key in self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]:
                del data[key]
        for key, value in batch.writes.items():
            if value is None:
                data.pop(key, None)
            else:
                data[key] = value
        self._data, self._keys = data, sorted(data)

    def sync(self) -> None:
        self.synced = dict(self._data)

    @property
    def memory_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Does nothing: unsynced writes are lost with the object, as in a crash."""
