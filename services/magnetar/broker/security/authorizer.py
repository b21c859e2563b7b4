"""Decides whether a principal has a right, by the grants in the metadata store.

The broker has the records of namespaces in memory (`NamespaceRecords`); the authorizer follows
those of tenants as well. A decision therefore reads nothing from the store, and a change by any
broker applies here when the watch reports it. It fails closed: while the records are not loaded, if
one of them cannot be decoded, or while the broker has no lease and may have missed changes, the
decision is ServiceNotReady, so that clients retry. Super users need no record and are always
recognized.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.broker.policies.namespaces import NamespaceRecords
from magnetar.broker.security.denials import Denials
from magnetar.broker.security.grants import NONE, Grants
from magnetar.broker.security.needs import Need, namespace_of, tenant_of
from magnetar.broker.security.principal import Principal
from magnetar.broker.security.rules import Rules
from magnetar.core.errors import MetadataError, ServiceNotReady
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName
from magnetar.core.tasks import TaskSet
from magnetar.metadata.follower import Follower
from magnetar.metadata.records import decode_document
from magnetar.metadata.store import MetadataStore, Record

START_TIMEOUT_S: Final = 30.0
TENANTS_PREFIX: Final = "/tenants/"
_ADMINS: Final = "adminRoles"

Listener = Callable[[str, NamespaceName | None], None]
"""Called with the tenant whose rights changed, and the namespace if only its rights did."""

log = get_logger("magnetar.authorization")


def always() -> bool:
    """The records are always up to date: this broker is the only one."""
    return True


class Authorizer:
    """Decides about all requests of a broker. `start` it before the first request."""

    def __init__(
        self,
        store: MetadataStore,
        rules: Rules,
        denials: Denials,
        *,
        up_to_date: Callable[[], bool] = always,
    ) -> None:
        """`up_to_date` says whether the records in memory can be trusted: the lease is valid."""
        self.rules = rules
        self.denials = denials
        self._up_to_date = up_to_date
        self._following = Follower(store, TENANTS_PREFIX, self._tenant_changed)
        self._records: NamespaceRecords | None = None
        # Decoded records, by the revision that they were decoded from.
        self._admins: dict[str, tuple[int, frozenset[str]]] = {}
        self._grants: dict[NamespaceName, tuple[int, Grants]] = {}
        self._listeners: list[Listener] = []

    async def start(self, records: NamespaceRecords, tasks: TaskSet) -> None:
        """Returns once all tenants are loaded; `records` are loaded already."""
        tasks.start(self._following.run(), "follow tenants")
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._following.ready()
        records.listen(self._namespace_changed)
        self._records = records

    async def allowed(self, principal: Principal, need: Need) -> bool:
        """Whether the principal has the right.

        Raises ServiceNotReady if that cannot be decided now, and SubscriptionPrefixRequired.
        """
        decision = self.allowed_now(principal, need)
        if decision is None:
            raise ServiceNotReady("The broker has not loaded the grants of roles, please retry")
        return decision

    def allowed_now(self, principal: Principal, need: Need) -> bool | None:
        """Whether the principal has the right; None while the records are not loaded.

        Raises ServiceNotReady if a record cannot be trusted, and SubscriptionPrefixRequired.
        """
        roles = principal.roles
        tenant = tenant_of(need)
        if tenant is None:
            return all(self.rules.allowed(role, need, frozenset(), NONE) for role in roles)
        if all(role in self.rules.super_users for role in roles):
            return True
        if self._records is None:
            return None
        if not self._up_to_date():
            raise ServiceNotReady("The broker has no lease, so its grants may be outdated")
        admins = self._admins_of(tenant)
        namespace = namespace_of(need)
        grants = NONE if namespace is None else self._grants_on(namespace, self._records)
        return all(self.rules.allowed(role, need, admins, grants) for role in roles)

    def is_super_user(self, principal: Principal) -> bool:
        """Whether all roles of the principal are super users."""
        return all(role in self.rules.super_users for role in principal.roles)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener(tenant, namespace)` after each change of rights; returns the undo."""
        self._listeners.append(listener)

        def unlisten() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unlisten

    def _admins_of(self, tenant: str) -> frozenset[str]:
        record = self._following.records.get(TENANTS_PREFIX + tenant)
        if record is None:
            return frozenset()
        known = self._admins.get(tenant)
        if known is None or known[0] != record.revision:
            try:
                document = decode_document(record.key, record.value)
                admins = frozenset(document.get(_ADMINS) or ())
            except (MetadataError, TypeError) as error:
                raise _unreadable(record, error) from None
            known = self._admins[tenant] = record.revision, admins
        return known[1]

    def _grants_on(self, namespace: NamespaceName, records: NamespaceRecords) -> Grants:
        record = records.record(namespace)
        if record is None:
            return NONE
        known = self._grants.get(namespace)
        if known is None or known[0] != record.revision:
            try:
                grants = Grants.of(decode_document(record.key, record.value))
            except (MetadataError, AttributeError, TypeError, ValueError) as error:
                raise _unreadable(record, error) from None
            known = self._grants[namespace] = record.revision, grants
        return known[1]

    def _tenant_changed(self, key: str, record: Record | None) -> None:
        tenant = key.removeprefix(TENANTS_PREFIX)
        former = self._admins.pop(tenant, None)
        if record is not None and former is not None:
            try:
                # Creating a namespace writes the tenant's record unchanged.
                if self._admins_of(tenant) == former[1]:
                    return
            except ServiceNotReady:
                pass  # logged; the listeners check again and fail closed
        self._notify(tenant, None)

    def _namespace_changed(self, namespace: NamespaceName) -> None:
        former = self._grants.pop(namespace, None)
        if former is not None and self._records is not None:
            try:
                if self._grants_on(namespace, self._records) == former[1]:
                    return  # another part of the document changed
            except ServiceNotReady:
                pass
        self._notify(namespace.tenant, namespace)

    def _notify(self, tenant: str, namespace: NamespaceName | None) -> None:
        for listener in list(self._listeners):
            try:
                listener(tenant, namespace)
            except Exception:
                # The other listeners and the watch must continue.
                log.exception("listener failed on a change of rights", tenant=tenant)


def _unreadable(record: Record, error: Exception) -> ServiceNotReady:
    log.error("rights cannot be read", key=record.key, error=str(error))
    return ServiceNotReady("The rights of roles cannot be read, please retry later")
