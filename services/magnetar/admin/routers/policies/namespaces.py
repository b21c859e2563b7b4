"""`/admin/v2/namespaces/{tenant}/{namespace}/{policy}`: get, set and remove a namespace's policies.

The same three handlers serve all policies of the registry. Unlike in Pulsar, every policy can be
removed, and `applied=true` shows the value in force, which the broker's settings may define.
"""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import namespace_of, service_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, bare, done, empty
from magnetar.admin.http.routes import Routes
from magnetar.admin.routers.policies import documents, forms, rules
from magnetar.admin.routers.policies.offload_place import check_place
from magnetar.admin.routers.policies.table import PolicyTable
from magnetar.broker.catalog.resources import Document
from magnetar.broker.policies.resolution import applied, of_namespace
from magnetar.broker.service import BrokerService
from magnetar.offload.policy import effective
from magnetar.policies.admission import SCHEMA_AUTO_UPDATE
from magnetar.policies.lifecycle import BACKLOG_QUOTA, OFFLOAD, PERSISTENCE
from magnetar.policies.policy import Level, Policy, Unset
from magnetar.policies.types import ListOf, Text

router = Routes(prefix="/admin/v2/namespaces", tags=("namespaces",))

_PATH: Final = "/{tenant:name}/{namespace:name}"
_TABLE: Final = PolicyTable(Level.NAMESPACE)

ONE_BOOKIE: Final = {
    "bookkeeperEnsemble": 1,
    "bookkeeperWriteQuorum": 1,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 0.0,
}
"""The persistence policy in force on a standalone, which has no setting for it."""


async def get_policy(request: Request) -> Response:
    service, policy = service_of(request), _TABLE.to_get(request)
    document = await service.resources.policies(namespace_of(request))
    if bodies.flag(request, "applied"):
        return shown(policy, in_force(service, policy, document))
    value = documents.value_in(document, policy, service.cluster)
    if value is None and policy is SCHEMA_AUTO_UPDATE:
        value = service.settings.schemas.schema_auto_update
    return shown(policy, value, unset=_TABLE.rest(policy).unset)


async def set_policy(request: Request) -> Response:
    policy = _TABLE.to_set(request)
    rest = _TABLE.rest(policy)
    key = forms.key_of(request, policy, rest)
    await _change(request, policy, await forms.read(request, policy, rest), key)
    return Response(status_code=rest.done)


async def remove_policy(request: Request) -> Response:
    policy = _TABLE.to_remove(request)
    await _change(request, policy, None, forms.key_of(request, policy, _TABLE.rest(policy)))
    return done()


async def _change(request: Request, policy: Policy, value: Any, key: str) -> None:
    service, namespace = service_of(request), namespace_of(request)
    await service.resources.policies(namespace)  # "not found" precedes "invalid value"
    await rules.check_value(service, namespace, policy, value, Level.NAMESPACE)
    if policy is BACKLOG_QUOTA and value is not None:
        rules.check_quota(key, value)

    def change(document: Document) -> Document:
        changed = documents.with_value(document, policy, value, service.cluster, key)
        if policy is OFFLOAD:
            place, former, default = (
                effective(service.offloading.defaults, known, None).store
                for known in (changed, document, None)
            )
            check_place(request, place, former, default)
        if value is not None:
            rules.check_together(
                policy,
                lambda other: of_namespace(other, changed, service.cluster),
                Level.NAMESPACE,
            )
        return changed

    await service.resources.update_policies(namespace, change)


def in_force(service: BrokerService, policy: Policy, document: Document) -> Any:
    """Returns the policy in force for the namespace with that document."""
    own = of_namespace(policy, document, service.cluster)
    if service.policies.is_fixed(policy):
        own = None
    value = applied(policy, service.policies.broker_default(policy), own)
    return ONE_BOOKIE if value is None and policy is PERSISTENCE else value


def shown(policy: Policy, value: Any, *, unset: Unset = Unset.EMPTY_200) -> Response:
    """Returns Pulsar's response for a policy's value; None means that it is not set."""
    if value is None and isinstance(policy.type, ListOf):
        value = policy.undefined
    if value is None and unset is Unset.VALUE:
        value = {} if policy.keyed else policy.default
    if value is None:
        return done() if unset is Unset.NO_CONTENT else empty()
    if isinstance(policy.type, Text):
        return bare(value)
    return answer(forms.shown(policy, value))


_TABLE.register(router, _PATH, get=get_policy, set_=set_policy, remove=remove_policy)
