"""A process's way into its cluster: the metadata store, waited for; the cluster, checked; a lease.

A store that is not there yet (all processes of a cluster are started at once) is waited for with
lines that say so, up to `metadata_wait_s`. One that refuses (wrong password, wrong cluster) is told
at once.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.cluster.identity import ClusterIdentity, claim_cluster, new_cluster_id
from magnetar.cluster.settings import MemberSettings
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError, PreconditionFailed
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.opening import StoreOptions, open_store
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataStore, MetadataUnavailable
from magnetar.observe.metrics import single

RETRY_S: Final = 0.5
PROGRESS_FIRST_S: Final = 2.0
PROGRESS_S: Final = 5.0
"""When a line says that the store is waited for, and how often again."""

log = get_logger("magnetar.cluster")


@dataclass(slots=True)
class Membership:
    """An open store of the right cluster, and a session that is not started yet."""

    store: MetadataStore
    session: MetadataSession
    cluster: ClusterIdentity


def session_families(session: MetadataSession) -> Iterable[str]:
    """For /metrics: whether the process's lease is good, and how often it was not."""
    yield single("magnetar_session_valid", "", int(session.valid))
    yield single("magnetar_session_suspensions_total", "", session.suspensions, "counter")


async def join(settings: MemberSettings, cluster_name: str, clock: Clock, name: str) -> Membership:
    """Waits for the store and holds it to the cluster; raises MetadataError, and leaves no trace.

    `name` is the process's, for its log.
    """
    options = store_options(settings)
    store: MetadataStore | None = None
    tasks = TaskSet("membership")
    tasks.start(_tell_progress(settings), "progress")
    began = clock.monotonic()
    error: Exception = TimeoutError("no answer")
    try:
        async with asyncio.timeout(settings.metadata_wait_s):
            while True:
                try:
                    if store is None:
                        store = await open_store(settings.metadata_url, clock, options)
                    cluster = await claim_cluster(
                        store, cluster_name, clock, new_cluster_id(), settings.cluster_owner
                    )
                    break
                except MetadataUnavailable as unavailable:
                    error = unavailable
                await asyncio.sleep(RETRY_S)
        session = MetadataSession(store, settings.session_timeout_ms / 1000, clock, name)
        joined = Membership(store, session, cluster)
        store = None
        return joined
    except TimeoutError:
        raise MetadataError(
            f"the metadata store {settings.metadata_url} (metadata_url) could not be reached "
            f"for {clock.monotonic() - began:.0f} s (metadata_wait_s): {error}"
        ) from error
    finally:
        if store is not None:
            await store.close()
        await tasks.stop()


async def _tell_progress(settings: MemberSettings) -> None:
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


def store_options(settings: MemberSettings) -> StoreOptions:
    """What goes with the store's URL; raises PreconditionFailed naming the setting."""
    return StoreOptions(
        root=settings.metadata_root,
        tls_ca_file=str(settings.metadata_tls_ca_file or ""),
        tls_cert_file=str(settings.metadata_tls_cert_file or ""),
        tls_key_file=str(settings.metadata_tls_key_file or ""),
        username=settings.metadata_username,
        password=_password(settings.metadata_password_file),
    )


def _password(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PreconditionFailed(f"metadata_password_file {path}: {error}") from error
