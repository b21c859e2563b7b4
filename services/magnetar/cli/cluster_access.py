"""Gives the commands that maintain a cluster access to its metadata and bookies.

The settings are those of the cluster's processes, from flags, environment and file. Such a command
does not register and holds no lease, so it leaves only its results in the metadata store.
"""

import argparse
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.core.clock import Clock
    from magnetar.ledger.registered_bookies import RegisteredBookies
    from magnetar.metadata.store import MetadataStore

UNDETERMINED = 2
"""Exit code of a command that could not determine its answer."""


@dataclass(frozen=True, slots=True)
class Access:
    """The connections of a command."""

    store: "MetadataStore"
    bookies: "RegisteredBookies"
    clock: "Clock"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that locate the cluster; without them, MAGNETAR_METADATA_URL and others do."""
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
    """Connects to the cluster. Raises MetadataError, or Refused if a setting is wrong."""
    import msgspec

    from magnetar.cli import roles
    from magnetar.cluster.identity import CLUSTER_KEY, ClusterIdentity
    from magnetar.cluster.membership import store_options
    from magnetar.core.clock import SystemClock
    from magnetar.core.errors import MetadataError
    from magnetar.ledger.registered_bookies import RegisteredBookies
    from magnetar.metadata.store_url import open_store
    from magnetar.observe.logging import configure
    from magnetar.security.tls.reload import open_client_tls
    from magnetar.settings.member import AutorecoveryProcessSettings

    settings = roles.settings("autorecovery", AutorecoveryProcessSettings, args)
    configure(settings.log.log_format, "error")
    clock = SystemClock()
    store = await open_store(settings.member.metadata_url, clock, store_options(settings.member))
    try:
        record = await store.get(CLUSTER_KEY)
        if record is None:
            raise MetadataError(f"{settings.member.metadata_url} has no cluster")
        cluster = msgspec.json.decode(record.value, type=ClusterIdentity)
        tls = settings.bookie_client.config(settings.tls)
        bookies = RegisteredBookies(
            store,
            clock,
            cluster=cluster.cluster_id,
            client=name,
            tls=None if tls is None else open_client_tls(tls, "bookies"),
        )
        await bookies.start()
        try:
            yield Access(store, bookies, clock)
        finally:
            await bookies.stop()
    finally:
        await store.close()


def run(command: str, main: Callable[[], Coroutine[object, object, int]]) -> int:
    """Runs a command and returns its exit code; prints an error as one line."""
    import asyncio

    from magnetar.cli import roles
    from magnetar.core.errors import MagnetarError

    try:
        return asyncio.run(main())
    except roles.Refused as refused:
        return refused.code
    except (MagnetarError, TimeoutError, OSError) as error:
        print(f"magnetar {command}: {error or type(error).__name__}", file=sys.stderr)
        return UNDETERMINED
    except KeyboardInterrupt:
        print(f"magnetar {command}: interrupted", file=sys.stderr)
        return UNDETERMINED


def print_json(value: object) -> None:
    """Prints the value as one line of JSON."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()
