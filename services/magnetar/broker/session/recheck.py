"""Checks producers, consumers and watches again when rights change; ends those without a right.

A change names a tenant, or one of its namespaces. All sessions are then scanned, CHECKS_PER_TURN
producers and consumers per turn of the event loop, so that the messages of others continue. Changes
during a scan are collected for the next one, which starts at least PAUSE_S later.

As in Pulsar, the client gets CLOSE_PRODUCER or CLOSE_CONSUMER and tries to attach again; that
attempt is refused with AuthorizationError. If a right cannot be decided, it counts as lost. A watch
on a list of topics ends without a message: the protocol has none for that.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from magnetar.broker.rates.subscribe_rate import host_of
from magnetar.broker.security.authorizer import Authorizer
from magnetar.broker.security.needs import (
    NamespaceNeed,
    NamespaceOperation,
    Need,
    TopicNeed,
    TopicOperation,
)
from magnetar.broker.session.session import Session
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName
from magnetar.core.tasks import TaskSet

log = get_logger("magnetar.authorization")

CHECKS_PER_TURN: Final = 256
PAUSE_S: Final = 0.05


def check_producer(session: Session, producer_id: int, authorizer: Authorizer) -> None:
    """Disconnects a producer of the session if it may not produce any more."""
    attached = session.producers.get(producer_id)
    if attached is None or attached[0].closed:
        return
    producer, topic = attached
    need = TopicNeed(topic.name, TopicOperation.PRODUCE)
    if not _holds(session, need, authorizer, "CLOSE_PRODUCER"):
        topic.remove_producer(producer)
        session.link.close_producer(producer)


def check_consumer(session: Session, consumer_id: int, authorizer: Authorizer) -> None:
    """Disconnects a consumer of the session if it may not consume any more."""
    attachment = session.consumers.get(consumer_id)
    if attachment is None or not attachment.attached:
        return
    name = attachment.subscription.name
    need = TopicNeed(attachment.topic.name, TopicOperation.CONSUME, name)
    if not _holds(session, need, authorizer, "CLOSE_CONSUMER"):
        attachment.detach()
        session.link.close_consumer(consumer_id)


def check_watcher(session: Session, watcher_id: int, authorizer: Authorizer) -> None:
    """Ends a watch of the session on a list of topics if it may not list them any more."""
    watcher = session.watchers.get(watcher_id)
    if watcher is None:
        return
    need = NamespaceNeed(watcher.namespace, NamespaceOperation.GET_TOPICS)
    if not _holds(session, need, authorizer, "WATCH_TOPIC_LIST_CLOSE"):
        watcher.close()
        del session.watchers[watcher_id]


def _holds(session: Session, need: Need, authorizer: Authorizer, consequence: str) -> bool:
    """Whether the right still holds; if not, the audit log gets its `consequence`."""
    principal = session.principal
    try:
        allowed = bool(authorizer.allowed_now(principal, need))
    except MagnetarError:
        allowed = False
    if not allowed:
        authorizer.denials.record(principal, need, host_of(session.link.address), consequence)
    return allowed


class Recheck:
    """Checks the sessions of a broker again after each change of rights."""

    def __init__(
        self, sessions: Callable[[], Iterable[Session]], authorizer: Authorizer, tasks: TaskSet
    ) -> None:
        self._sessions = sessions
        self._authorizer = authorizer
        self._tasks = tasks
        self._tenants: set[str] = set()
        self._namespaces: set[NamespaceName] = set()
        self._running = False
        self._checked = 0

    def changed(self, tenant: str, namespace: NamespaceName | None) -> None:
        """Schedules a scan of the namespace, or of all namespaces of the tenant."""
        if namespace is None:
            self._tenants.add(tenant)
        else:
            self._namespaces.add(namespace)
        if not self._running:
            self._running = self._tasks.start(self._scan(), "recheck of rights") is not None

    async def _scan(self) -> None:
        try:
            while self._tenants or self._namespaces:
                tenants, self._tenants = self._tenants, set()
                namespaces, self._namespaces = self._namespaces, set()

                def concerns(name: NamespaceName) -> bool:
                    return name.tenant in tenants or name in namespaces  # noqa: B023

                for session in list(self._sessions()):
                    try:
                        await self._check_session(session, concerns)
                    except Exception:
                        # An attachment that was not checked may have lost its right.
                        log.exception("rights not checked", peer=session.link.address)
                        session.link.close()
                await asyncio.sleep(PAUSE_S)
        finally:
            self._running = False

    async def _check_session(
        self, session: Session, concerns: Callable[[NamespaceName], bool]
    ) -> None:
        authorizer = self._authorizer
        for producer_id, (_, topic) in list(session.producers.items()):
            if concerns(topic.name.namespace):
                check_producer(session, producer_id, authorizer)
            await self._turn()
        for consumer_id, attachment in list(session.consumers.items()):
            if concerns(attachment.topic.name.namespace):
                check_consumer(session, consumer_id, authorizer)
            await self._turn()
        for watcher_id, watcher in list(session.watchers.items()):
            if concerns(watcher.namespace):
                check_watcher(session, watcher_id, authorizer)
            await self._turn()

    async def _turn(self) -> None:
        self._checked += 1
        if not self._checked % CHECKS_PER_TURN:
            await asyncio.sleep(0)
