"""How a process joins its cluster: it connects to the metadata store and checks the cluster.

All processes of a cluster may be started at once. A process therefore waits for the store up to
`metadata_wait_s`, and logs that it waits. A refusal (wrong password, wrong cluster) fails at once.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.cluster.identity import ClusterIdentity, claim_cluster, new_cluster_id
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError, PreconditionFailed
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataStore, MetadataUnavailable
from magnetar.metadata.store_url import StoreOptions, open_store
from magnetar.security.tls.process import ProcessTls
from magnetar.security.tls.reload import ClientTls
from magnetar.settings.member import ClusterSettings, MemberSettings

RETRY_S: Final = 0.5
PROGRESS_FIRST_S: Final = 2.0
PROGRESS_S: Final = 5.0
"""When the first line says that the process waits, and how often the next follow."""

log = get_logger("magnetar.cluster")


@dataclass(slots=True)
class Membership:
    """An open metadata store of the right cluster, and a session that has not started."""

    store: MetadataStore
    session: MetadataSession
    cluster: ClusterIdentity
    bookie_tls: ClientTls | None = None
    """The TLS of connections to bookies; None if they are plain."""


async def join(
    opened: AsyncExitStack,
    settings: ClusterSettings,
    clock: Clock,
    name: str,
    tls: ProcessTls,
) -> Membership:
    """Waits for the store and checks its cluster; raises MetadataError.

    `opened` then stops the session and closes the store. The session stops first, since its stop
    deletes the keys under its lease. `name` identifies the process in its log.
    """
    member = settings.member
    options = store_options(member)
    bookie_tls = tls.client_if(settings.bookie_client.config(settings.tls), "bookies")
    store: MetadataStore | None = None
    tasks = TaskSet("membership")
    tasks.start(_log_progress(member), "progress")
    began = clock.monotonic()
    error: Exception = TimeoutError("no answer")
    try:
        async with asyncio.timeout(member.metadata_wait_s):
            while True:
                try:
                    if store is None:
                        store = await open_store(member.metadata_url, clock, options)
                    cluster = await claim_cluster(
                        store, settings.cluster_name, clock, new_cluster_id(), member.cluster_owner
                    )
                    break
                except MetadataUnavailable as unavailable:
                    error = unavailable
                await asyncio.sleep(RETRY_S)
        session = MetadataSession(store, member.session_timeout_ms / 1000, clock, name)
        joined = Membership(store, session, cluster, bookie_tls)
        opened.push_async_callback(store.close)
        opened.push_async_callback(session.stop)
        store = None
        return joined
    except TimeoutError:
        raise MetadataError(
            f"the metadata store {member.metadata_url} (metadata_url) could not be reached "
            f"for {clock.monotonic() - began:.0f} s (metadata_wait_s): {error}"
        ) from error
    finally:
        if store is not None:
            await store.close()
        await tasks.stop()


async def _log_progress(settings: MemberSettings) -> None:
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
    """Returns the store's options; raises PreconditionFailed for a password that cannot be read."""
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
