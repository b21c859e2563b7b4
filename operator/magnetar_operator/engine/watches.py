"""Runs kopf in the operator's event loop: it watches all registered kinds.

kopf logs in, lists, watches, reconnects and delivers the events of each object in order to the
handlers of `context.registry`. It also handles SIGTERM and SIGINT while it runs. Its other features
are switched off here, because they would write without the operator's lease:

- Peering: kopf's peers agree by priority and wall clock, and a peer whose process was paused still
  writes when it wakes up. `kube.lease` fences instead (`test_lease.py`,
  `test_operator_process.py::test_the_lease_is_taken_over_only_after_its_holder_has_stopped`).
- Finalizers: kopf adds and removes its own finalizer, for its own handlers only. Ours must exist
  before anything is created in a cluster, must be absent with KeepAfterDeletion
  (`test_resources_ending.py`), and is written to exactly the version of the object that was read.
- Events: kopf posts core/v1 Events one by one. `kube.events` counts equal ones in a series
  (`test_operator_process.py`, SERIES_INTERVAL_S), and the operator's role grants no core/v1 Events.
- Queues and retries: see `engine.queue`. Progress and results: see `engine.reconciler`.
"""

import asyncio
import logging
import os
from typing import Any, Final

import kopf

from magnetar_operator.engine.context import Context
from magnetar_operator.kube.client import Unreachable
from magnetar_operator.kube.kinds import Kind

UNUSED_FINALIZER: Final = "magnetar.io/kopf"
"""kopf removes this finalizer from objects without handlers, so it must not be ours."""
WATCH_TIMEOUT_S: Final = 300
WATCH_CONNECT_TIMEOUT_S: Final = 30.0
CLOSING_S: Final = 0.25
CRD_RETRY_S: Final = 2.0

log = logging.getLogger(__name__)


async def watch(context: Context) -> None:
    """Watches until it is cancelled or a signal ends the process; raises kopf's errors."""
    await _wait_for_kinds(context)
    settings = context.settings
    tasks = await kopf.spawn_tasks(
        registry=_with_login(context.registry, settings.kubeconfig),
        settings=_kopf_settings(),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )
    # Not `kopf.operator`: it would cancel all later tasks of the loop when it ends.
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # kopf does not wait until its TLS connections are closed, which takes a few loop turns.
        await asyncio.sleep(CLOSING_S)


async def _wait_for_kinds(context: Context) -> None:
    """Waits for all CRDs: kopf resolves kinds only when it starts, unless it may watch CRDs."""
    for kind in context.kinds:
        warned = False
        while not await _serves(context, kind):
            if not warned:
                log.warning("waiting for the CRD of %s (%s)", kind.kind, kind.group)
            warned = True
            await asyncio.sleep(CRD_RETRY_S)


async def _serves(context: Context, kind: Kind) -> bool:
    try:
        return await context.kube.serves(kind)
    except Unreachable as error:
        log.warning("Kubernetes does not answer: %s", error)
        return False


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.finalizer = UNUSED_FINALIZER
    settings.watching.server_timeout = WATCH_TIMEOUT_S  # it must be an integer
    settings.watching.connect_timeout = WATCH_CONNECT_TIMEOUT_S
    settings.scanning.disabled = True  # see `_wait_for_kinds`
    settings.process.ultimate_exiting_timeout = None
    return settings


def _with_login(registry: kopf.OperatorRegistry, kubeconfig: str | None) -> kopf.OperatorRegistry:
    """Makes kopf log in with the same account as our own requests."""

    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        if kubeconfig is not None:
            os.environ["KUBECONFIG"] = kubeconfig
        return kopf.login_via_client(**kwargs)

    kopf.on.login(registry=registry)(login)
    return registry
