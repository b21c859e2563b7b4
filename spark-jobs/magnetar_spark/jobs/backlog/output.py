"""Where a run's files go: a folder, or a prefix in an object store. Whole files, put at once.

`s3://BUCKET/PREFIX` with credentials (and AWS_ENDPOINT_URL) from the environment, `gs://`, `az://`,
or a folder by its path.
"""

import io
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

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
from magnetar_spark.jobs.backlog.tables import SCHEMAS

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_DRIVERS: Final = {"s3": "aws-s3", "s3a": "aws-s3", "gs": GOOGLE, "az": AZURE, "azure": AZURE}
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
TABLES_PREFIX: Final = "tables"
RUN: Final = "run="
PART: Final = "part-0.parquet"


def store_of(place: str) -> StoreSpec:
    """Raises PreconditionFailed where nothing is known of such a place."""
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
    """Sorts as time does."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{time:%Y%m%dT%H%M%S}{time_ms % 1000:03d}Z"


def run_ms(name: str) -> int:
    """The inverse of `run_name`; raises ValueError."""
    time = datetime.strptime(name[:-4], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(time.timestamp()) * 1000 + int(name[-4:-1])


class Output:
    """See the module's text. What the store refuses is raised as an error that names the file."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._store: ObjectStore = open_object_store(store_of(place))

    def put(self, path: str, data: bytes) -> None:
        import obstore

        try:
            obstore.put(self._store, path, data)
        except Exception as error:
            raise store_error(error, f"{self.place}/{path}") from error

    def put_table(self, name: str, run: str, table: pa.Table) -> None:
        """One table of a run."""
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        self.put(_path(name, run), buffer.getvalue())

    def run_before(self, time_ms: int) -> str | None:
        """The newest run before this time; None where there is none."""
        import obstore

        prefix = f"{TABLES_PREFIX}/subscriptions/"
        try:
            found = obstore.list_with_delimiter(self._store, prefix)["common_prefixes"]
        except Exception as error:
            raise store_error(error, f"{self.place}/{prefix}") from error
        names = [each.rstrip("/").rpartition("/")[2].removeprefix(RUN) for each in found]
        before = []
        for name in names:
            try:
                if run_ms(name) < time_ms:
                    before.append(name)
            except ValueError:
                continue  # not ours
        return max(before, default=None)

    def rows(self, name: str, run: str) -> list[dict[str, Any]]:
        """One table of an earlier run; columns that it did not have are null."""
        import obstore

        path = _path(name, run)
        try:
            data = bytes(obstore.get(self._store, path).bytes())
        except Exception as error:
            raise store_error(error, f"{self.place}/{path}") from error
        found = pq.read_table(pa.BufferReader(data), schema=SCHEMAS[name])
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows


def _path(name: str, run: str) -> str:
    return f"{TABLES_PREFIX}/{name}/{RUN}{run}/{PART}"
