"""A process's way into its cluster: the metadata store, waited for; the cluster, checked; a lease.

A store that is not there yet (all processes of a cluster are started at once) is waited for with
lines that say so, up to `metadata_wait_s`. One that refuses (wrong password, wrong cluster) is told
at once.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Protocol

from magnetar.cluster.identity import ClusterIdentity, claim_cluster, new_cluster_id
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError, PreconditionFailed
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataStore, MetadataUnavailable

RETRY_S: Final = 0.5
PROGRESS_FIRST_S: Final = 2.0
PROGRESS_S: Final = 5.0
"""When a line says that the store is waited for, and how often again."""

log = get_logger("magnetar.cluster")


class Settings(Protocol):
    """What a member's settings have for this."""

    @property
    def cluster_name(self) -> str: ...
    @property
    def metadata_url(self) -> str: ...
    @property
    def metadata_wait_s(self) -> int: ...
    @property
    def session_timeout_ms(self) -> int: ...


@dataclass(slots=True)
class Membership:
    """An open store of the right cluster, and a session that is not started yet."""

    store: MetadataStore
    session: MetadataSession
    cluster: ClusterIdentity


async def check_in(
    store: MetadataStore, settings: Settings, clock: Clock, process_name: str
) -> Membership:
    """Waits for the store and holds it to the cluster; raises MetadataError."""
    cluster = await _cluster_of(store, settings, clock)
    session = MetadataSession(store, settings.session_timeout_ms / 1000, clock, process_name)
    return Membership(store, session, cluster)


async def _cluster_of(store: MetadataStore, settings: Settings, clock: Clock) -> ClusterIdentity:
    """Tries until it succeeds, is refused, or has taken `metadata_wait_s`."""
    tasks = TaskSet("membership")
    began = clock.monotonic()
    tasks.start(_tell_progress(settings), "progress")
    error: Exception = TimeoutError("no answer")
    try:
        async with asyncio.timeout(settings.metadata_wait_s):
            while True:
                try:
                    return await claim_cluster(
                        store, settings.cluster_name, clock, new_cluster_id()
                    )
                except MetadataUnavailable as unavailable:
                    error = unavailable
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise MetadataError(
            f"the metadata store {settings.metadata_url} (metadata_url) could not be reached "
            f"for {clock.monotonic() - began:.0f} s (metadata_wait_s): {error}"
        ) from error
    finally:
        await tasks.stop()


async def _tell_progress(settings: Settings) -> None:
    waited_s = PROGRESS_FIRST_S
    await asyncio.sleep(waited_s)
    while True:
        log.warning(
            "waiting for the metadata store",
            metadata_url=settings.metadata_url,
            waited_s=waited_s,
            wait_s_max=settings.metadata_wait_s,
        )
        await asyncio.sleep(PROGRESS_S)
        waited_s += PROGRESS_S


def read_password(path: Path | None) -> str:
    """The first line of the file; raises PreconditionFailed naming the setting."""
    if path is None:
        return ""
    try:
        return path.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PreconditionFailed(f"metadata_password_file {path}: {error}") from error


def jitter() -> Random:
    """The process's own randomness."""
    return Random()
