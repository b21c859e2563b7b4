"""The output of runs: a folder, or a prefix in an object store, to which whole files are written.

It is given as `s3://BUCKET/PREFIX`, with credentials and AWS_ENDPOINT_URL from the environment,
`gs://`, `az://`, or the path of a folder.
"""

import io
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from magnetar.core.errors import PreconditionFailed
from magnetar.offload.stores import (
    AZURE,
    FILESYSTEM,
    GOOGLE,
    StoreSpec,
    open_object_store,
    store_error,
)
from magnetar_spark.jobs.backlog.tables.tables import (
    SCHEMAS,
    TABLE_NAMES,
    rows_from,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

R = TypeVar("R", bound=msgspec.Struct)

_DRIVERS: Final = {"s3": "aws-s3", "s3a": "aws-s3", "gs": GOOGLE, "az": AZURE, "azure": AZURE}
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
TABLES_PREFIX: Final = "tables"
RUN: Final = "run="
PART: Final = "part-0.parquet"


def store_of(place: str) -> StoreSpec:
    """The store of an output. Raises PreconditionFailed for an unknown scheme."""
    parts = urlsplit(place)
    if "://" not in place or parts.scheme == "file":
        return StoreSpec(FILESYSTEM, place)
    driver = _DRIVERS.get(parts.scheme)
    if driver is None or not parts.netloc:
        raise PreconditionFailed(
            f"--output {place}: write a folder, or s3://BUCKET/PREFIX (gs, az likewise)"
        )
    endpoint = region = ""
    if parts.scheme.startswith("s3"):
        endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    return StoreSpec(driver, parts.netloc, region, endpoint, parts.path.strip("/"))


def run_name(time_ms: int) -> str:
    """The name of a run; names sort by time."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{time:%Y%m%dT%H%M%S}{time_ms % 1000:03d}Z"


def run_ms(name: str) -> int:
    """The inverse of `run_name`. Raises ValueError."""
    time = datetime.strptime(name[:-4], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(time.timestamp()) * 1000 + int(name[-4:-1])


class Output:
    """Reads and writes the files of runs. Errors name the file."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._store: ObjectStore = open_object_store(store_of(place))

    def put(self, path: str, data: bytes) -> None:
        """Writes one file."""
        import obstore

        try:
            obstore.put(self._store, path, data)
        except Exception as error:
            raise store_error(error, f"{self.place}/{path}") from error

    def put_table(self, name: str, run: str, table: pa.Table) -> None:
        """Writes one table of a run."""
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        self.put(_path(name, run), buffer.getvalue())

    def run_before(self, time_ms: int) -> str | None:
        """The newest run before this time; None if there is none."""
        import obstore

        prefix = f"{TABLES_PREFIX}/subscriptions/"
        try:
            folders = obstore.list_with_delimiter(self._store, prefix)["common_prefixes"]
        except Exception as error:
            raise store_error(error, f"{self.place}/{prefix}") from error
        names = [path.rstrip("/").rpartition("/")[2].removeprefix(RUN) for path in folders]
        before = []
        for name in names:
            try:
                if run_ms(name) < time_ms:
                    before.append(name)
            except ValueError:
                continue  # not ours
        return max(before, default=None)

    def rows(self, row_type: type[R], run: str) -> list[R]:
        """One table of an earlier run; columns that it did not have are None."""
        import obstore

        name = TABLE_NAMES[row_type]
        path = _path(name, run)
        try:
            data = bytes(obstore.get(self._store, path).bytes())
        except Exception as error:
            raise store_error(error, f"{self.place}/{path}") from error
        return rows_from(row_type, pq.read_table(pa.BufferReader(data), schema=SCHEMAS[name]))


def _path(name: str, run: str) -> str:
    return f"{TABLES_PREFIX}/{name}/{RUN}{run}/{PART}"
