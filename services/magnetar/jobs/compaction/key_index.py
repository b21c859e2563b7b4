"""The latest place of each key, in bounded memory: SQLite keeps and sorts what does not fit.

The database is private to one compaction: a file without a name, which the system deletes with the
process, in the folder of `SQLITE_TMPDIR` or `TMPDIR`. It is written only once the cache of pages is
full, so a topic with few keys never touches the disk. Sorting spills to files of the same kind.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from magnetar.core.errors import PersistenceError
from magnetar.jobs.compaction.chunks import ChunkRow

KIB: Final = 1 << 10
ROWS_AT_ONCE: Final = 10_000
PAGES_MIN: Final = 16
"""Enough for the empty tables."""
_SETTINGS: Final = (
    "PRAGMA journal_mode=OFF",
    "PRAGMA synchronous=OFF",
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA temp_store=FILE",
)
_TABLES: Final = (
    "CREATE TABLE latest(key BLOB PRIMARY KEY, place INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE survivor(place INTEGER PRIMARY KEY)",
    "CREATE TABLE chunk(message BLOB, place INTEGER, last INTEGER, open INTEGER)",
)
_SURVIVORS: Final = "SELECT place FROM latest WHERE place & 1 ORDER BY place"
_KEEP_SURVIVORS: Final = "INSERT INTO survivor SELECT place FROM latest WHERE place & 1"
_KEEP_CHUNKS: Final = """
INSERT OR IGNORE INTO survivor
SELECT place FROM (
    SELECT place, last, open, min(CASE WHEN last THEN place END) OVER (
        PARTITION BY message ORDER BY place DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS next_last
    FROM chunk
)
WHERE NOT last AND CASE
    WHEN next_last IS NULL THEN open
    ELSE EXISTS (SELECT 1 FROM survivor WHERE survivor.place = next_last)
END
"""


class KeyIndex:
    """Maps keys to places; a context manager, for one thread. Raises PersistenceError."""

    def __init__(self, memory_bytes: int, disk_bytes: int | None = None) -> None:
        """`memory_bytes` bounds the cache of pages, and again each sort, `disk_bytes` the file.

        A sort spills less than the file has.
        """
        self._connection = sqlite3.connect("", isolation_level=None)
        self._has_chunks = False
        for statement in (*_SETTINGS, f"PRAGMA cache_size=-{max(1, memory_bytes // KIB)}"):
            self._connection.execute(statement)
        if disk_bytes is not None:
            ((page_bytes,),) = self._connection.execute("PRAGMA page_size")
            pages = max(PAGES_MIN, disk_bytes // page_bytes)
            self._connection.execute(f"PRAGMA max_page_count={pages}")
        for statement in _TABLES:
            self._connection.execute(statement)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def update(self, latest: Mapping[bytes, int]) -> None:
        """Sets the places of keys. Of two calls with a key, the later one has the later place."""
        # In the order of the keys, so that neighbours share a page.
        self._insert("INSERT OR REPLACE INTO latest VALUES (?, ?)", sorted(latest.items()))

    def add_chunks(self, rows: Iterable[ChunkRow]) -> None:
        """Adds chunks of messages, in their order."""
        self._has_chunks = True
        self._insert("INSERT INTO chunk VALUES (?, ?, ?, ?)", rows)

    def _insert(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        try:
            self._connection.execute("BEGIN")
            self._connection.executemany(statement, rows)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _failed(error) from error

    def survivors(self) -> Iterator[int]:
        """The places of the messages that survive, in order: see `chunks.staying` for chunks."""
        query = _SURVIVORS
        try:
            if self._has_chunks:
                for statement in (_KEEP_SURVIVORS, _KEEP_CHUNKS):
                    self._connection.execute(statement)
                query = "SELECT place FROM survivor ORDER BY place"
            rows = self._connection.execute(query)
            while places := rows.fetchmany(ROWS_AT_ONCE):
                for (place,) in places:
                    yield place
        except sqlite3.Error as error:
            raise _failed(error) from error


def _failed(error: sqlite3.Error) -> PersistenceError:
    return PersistenceError(
        f"the index of keys of a compaction failed: {error}. It needs about 40 bytes and the key "
        "for each key in the folder that TMPDIR names, and brokers bound it by "
        "compaction_index_disk_mb"
    )
