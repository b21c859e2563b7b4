"""`/admin/v2/clusters/{cluster}/namespaceIsolationPolicies`: brokers reserved for namespaces.

Only the local cluster can have policies: brokers of other clusters do not read this metadata store.
In a standalone, the one broker must be among a policy's brokers, because no other can join.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import service_of, text_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.routes import Routes
from magnetar.broker.balance.isolation import (
    ISOLATION,
    CompiledPolicy,
    IsolationPolicies,
    IsolationPolicy,
    check_limits,
    check_policy,
    normalized,
    with_policy,
    without_policy,
)
from magnetar.core.errors import MetadataError, NotAllowed, NotFound, PreconditionFailed

router = Routes(
    prefix="/admin/v2/clusters/{cluster:name}/namespaceIsolationPolicies", tags=("clusters",)
)

NAME_CHARACTERS_MAX: Final = 256
_NONE: Final = "NamespaceIsolationPolicies for cluster {} does not exist"
_BODY: Final = described(
    body="NamespaceIsolationData",
    example={
        "namespaces": ["tenant/.*"],
        "primary": ["broker-[0-2].*"],
        "secondary": ["broker-3.*"],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "80"},
        },
        "unload_scope": "changed",
    },
)


class BrokerIsolation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The policies of a broker, as Pulsar shows them."""

    broker_name: str
    namespace_regex: list[str]
    primary: bool
    policy_name: str | None = None


@router.get("", summary="The isolation policies of a cluster")
async def list_policies(request: Request) -> Response:
    cluster = text_of(request, "cluster")
    if cluster not in await service_of(request).resources.clusters():
        raise NotFound(f"Cluster {cluster} does not exist.")
    stored = await _stored(request, cluster)
    if stored is None:
        raise NotFound(_NONE.format(cluster))
    return answer(stored.policies)


@router.get("/brokers", summary="The living brokers with their policies")
async def list_brokers(request: Request) -> Response:
    stored = await _stored(request, await existing_cluster(request))
    return answer([_isolation_of(broker, stored) for broker in _living(request)])


@router.get("/brokers/{broker:name}", summary="The policies of a broker")
async def get_broker(request: Request) -> Response:
    stored = await _stored(request, await existing_cluster(request))
    return answer(_isolation_of(text_of(request, "broker"), stored))


@router.get("/{isolation_policy:name}", summary="An isolation policy")
async def get_policy(request: Request) -> Response:
    cluster, name = await existing_cluster(request), text_of(request, "isolation_policy")
    stored = await _stored(request, cluster)
    if stored is None:
        raise NotFound(_NONE.format(cluster))
    if name not in stored.policies:
        raise NotFound(f"Cannot find NamespaceIsolationPolicy {name} for cluster {cluster}")
    return answer(stored.policies[name])


@router.post("/{isolation_policy:name}", summary="Set an isolation policy", openapi_extra=_BODY)
async def set_policy(request: Request) -> Response:
    cluster, name = await existing_cluster(request), text_of(request, "isolation_policy")
    body = await bodies.parse(request, IsolationPolicy)
    if body is None:
        raise MetadataError("An isolation policy is required", http_status=400)
    if len(name) > NAME_CHARACTERS_MAX:
        raise PreconditionFailed(f"A policy's name has at most {NAME_CHARACTERS_MAX} characters")
    policy = normalized(body)
    check_policy(name, policy)
    check_limits(name, policy)
    refuse_other_cluster(request, cluster)
    service = service_of(request)
    if service.cluster_ownership is None:
        compiled, own = CompiledPolicy.of(name, policy), service.broker_id
        if not compiled.brokers([own], lambda _: 0.0):
            raise PreconditionFailed(
                f"The only broker, {own}, is neither a primary broker of the policy nor a "
                "secondary one that min_limit admits: its namespaces would be served nowhere"
            )
    await ISOLATION.change(service.store, lambda stored: with_policy(stored, name, policy))
    return done()


@router.delete("/{isolation_policy:name}", summary="Delete an isolation policy")
async def delete_policy(request: Request) -> Response:
    cluster, name = await existing_cluster(request), text_of(request, "isolation_policy")
    service = service_of(request)
    if cluster == service.cluster:
        await ISOLATION.change(service.store, lambda stored: without_policy(stored, name))
    return done()


async def existing_cluster(request: Request) -> str:
    """Returns the cluster in the path; raises PreconditionFailed if it is not registered."""
    cluster = text_of(request, "cluster")
    if cluster not in await service_of(request).resources.clusters():
        raise PreconditionFailed(f"Cluster {cluster} does not exist.")
    return cluster


def refuse_other_cluster(request: Request, cluster: str) -> None:
    """Raises NotAllowed unless the cluster is the local one."""
    local = service_of(request).cluster
    if cluster != local:
        raise NotAllowed(
            f"Only brokers of the cluster {local} read what is set here: use the address of a "
            f"broker of {cluster}"
        )


async def _stored(request: Request, cluster: str) -> IsolationPolicies | None:
    service = service_of(request)
    return await ISOLATION.read(service.store) if cluster == service.cluster else None


def _living(request: Request) -> list[str]:
    service = service_of(request)
    if service.cluster_ownership is None:
        return [service.broker_id]
    return [broker.broker_id for broker in service.cluster_ownership.brokers.living()]


def _isolation_of(broker: str, stored: IsolationPolicies | None) -> BrokerIsolation:
    policies: Mapping[str, IsolationPolicy] = stored.policies if stored else {}
    expressions: list[str] = []
    policy_name, primary = None, False
    for name, policy in sorted(policies.items()):
        compiled = CompiledPolicy.of(name, policy)
        if compiled.has_primary(broker) or compiled.has_secondary(broker):
            expressions += policy.namespaces or ()
            policy_name, primary = name, compiled.has_primary(broker)
    return BrokerIsolation(broker, expressions, primary, policy_name)
