"""How a command that looks after a cluster gets at its metadata and its bookies.

The same settings as those of the processes: flag, environment, file. Nothing is registered and no
lease is held, so such a command leaves no trace but what it was asked for.
"""

import argparse
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.core.clock import Clock
    from magnetar.ledger.registered_bookies import RegisteredBookies
    from magnetar.metadata.store import MetadataStore

COULD_NOT_TELL = 2


@dataclass(frozen=True, slots=True)
class Access:
    """What a command works with."""

    store: "MetadataStore"
    bookies: "RegisteredBookies"
    clock: "Clock"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Where the cluster is; what is not typed comes from MAGNETAR_METADATA_URL and its like."""
    parser.add_argument(
        "--metadata-store",
        "--metadata-url",
        dest="metadata_url",
        metavar="URL",
        default=argparse.SUPPRESS,
        help="the cluster's metadata, such as etcd:http://HOST:2379",
    )
    parser.add_argument(
        "--config", type=Path, default=argparse.SUPPRESS, help="file of settings of the cluster"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document per line")


@asynccontextmanager
async def opened(args: argparse.Namespace, name: str) -> AsyncIterator[Access]:
    """The cluster's metadata and bookies. Raises MetadataError, and Refused with a text printed."""
    import msgspec

    from magnetar.cli import roles
    from magnetar.cluster.identity import CLUSTER_KEY, ClusterIdentity
    from magnetar.cluster.membership import store_options
    from magnetar.cluster.settings import AutorecoveryProcessSettings
    from magnetar.core.clock import SystemClock
    from magnetar.core.errors import MetadataError
    from magnetar.ledger.registered_bookies import RegisteredBookies
    from magnetar.metadata.opening import open_store
    from magnetar.observe.logging import configure

    settings = roles.settings("autorecovery", AutorecoveryProcessSettings, args)
    configure(settings.log_format, "error")
    clock = SystemClock()
    store = await open_store(settings.metadata_url, clock, store_options(settings))
    try:
        record = await store.get(CLUSTER_KEY)
        if record is None:
            raise MetadataError(f"{settings.metadata_url} holds no cluster")
        cluster = msgspec.json.decode(record.value, type=ClusterIdentity)
        bookies = RegisteredBookies(store, clock, cluster=cluster.cluster_id, client=name)
        await bookies.start()
        try:
            yield Access(store, bookies, clock)
        finally:
            await bookies.stop()
    finally:
        await store.close()


def run(command: str, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs a command to its end; says in one line why it could not be done."""
    import asyncio

    from magnetar.cli import roles
    from magnetar.core.errors import MagnetarError

    try:
        return asyncio.run(main())
    except roles.Refused as refused:
        return refused.code
    except (MagnetarError, TimeoutError, OSError) as error:
        print(f"magnetar {command}: {error or type(error).__name__}", file=sys.stderr)
        return COULD_NOT_TELL
    except KeyboardInterrupt:
        print(f"magnetar {command}: broken off", file=sys.stderr)
        return COULD_NOT_TELL


def print_json(value: object) -> None:
    """One line."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()
