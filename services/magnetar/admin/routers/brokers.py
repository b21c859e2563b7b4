"""`/admin/v2/brokers`: the brokers, their health, their load balance and their settings."""

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import answers_of_peers
from magnetar.admin.cluster.placement import peers_of
from magnetar.admin.context import BundleNames, balance_of, service_of, text_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, bare, done, empty
from magnetar.admin.http.descriptions import described, query
from magnetar.admin.http.routes import Routes
from magnetar.admin.stats.load_report import balance_view, decisions_view
from magnetar.broker.service import BrokerService
from magnetar.core.errors import (
    MagnetarError,
    NotFound,
    ServiceNotReady,
)
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import settings_of, values_of

if TYPE_CHECKING:
    from magnetar.broker.balance.service import Balance

router = Routes(prefix="/admin/v2/brokers", tags=("brokers",))

HEALTH_TIMEOUT_S: Final = 10.0
LOG_ROUNDS_SHOWN: Final = 100
_QUOTA_CHECK: Final = "/admin/v2/brokers/backlog-quota-check"
_HEALTH_KEY: Final = "/health/checked"
_OWNED: Final = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}


@router.get("", summary="The brokers of this cluster")
async def list_brokers(request: Request) -> Response:
    return answer(_living(request))


def _living(request: Request) -> list[str]:
    """Returns the ids of all living brokers."""
    peers = peers_of(request)
    if peers is None:
        return [service_of(request).broker_id]
    return [peer.broker_id for peer in peers.routing.brokers()]


@router.get(
    "/health",
    summary="Whether metadata can be written, durably",
    openapi_extra=described(query("topicVersion", "string", "Accepted from tools; no effect")),
)
async def health(request: Request) -> Response:
    service = service_of(request)
    if service.stopping:
        raise ServiceNotReady("The broker is shutting down")
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            await service.store.put(_HEALTH_KEY, str(service.clock.now_ms()).encode())
    except (MagnetarError, TimeoutError) as error:
        raise ServiceNotReady(f"Metadata cannot be written: {error}") from error
    return bare("ok")


@router.get("/ready", summary="Whether the broker serves clients")
async def ready(request: Request) -> Response:
    if service_of(request).stopping:
        raise ServiceNotReady("The broker is shutting down")
    return bare("ok")


@router.get("/leaderBroker", summary="The leader of the load balance")
async def leader(request: Request) -> Response:
    service, balance = service_of(request), balance_of(request)
    if balance is None:
        return answer({"serviceUrl": service.http_url, "brokerId": service.broker_id})
    leader_record = await balance.leadership.read()
    if leader_record is None:
        raise NotFound("Couldn't find leader broker")
    return answer({"serviceUrl": leader_record.service_url, "brokerId": leader_record.broker_id})


@router.get(
    "/balance",
    summary="The brokers' loads, and the leader's decisions with reasons (not in Pulsar)",
    openapi_extra=described(query("limit", "integer", "Rounds of the log in the answer (100)")),
)
async def get_balance(request: Request) -> Response:
    balance = _balance(request)
    leader_record = await balance.leadership.read()
    rounds = await balance.balancer.decisions.rounds()
    limit = max(bodies.number(request, "limit", LOG_ROUNDS_SHOWN), 1)
    return answer(
        balance_view(
            None if leader_record is None else leader_record.broker_id,
            balance.reports.all(),
            rounds[-limit:],
            balance.balancer.counts,
        )
    )


@router.get(
    "/balance/dry-run", summary="The decisions that the current loads would cause if they lasted"
)
async def dry_run(request: Request) -> Response:
    return answer(decisions_view(await _balance(request).balancer.dry_run()))


def _balance(request: Request) -> "Balance":
    balance = balance_of(request)
    if balance is None:
        raise NotFound("There is only this broker: no load is balanced")
    return balance


@router.get("/version", summary="Version")
async def version(request: Request) -> Response:
    return bare(service_of(request).version)


@router.get("/configuration", summary="The settings that can change at run time")
async def dynamic_names(request: Request) -> Response:
    return answer(sorted(service_of(request).live.keys))


@router.get("/configuration/values", summary="The settings that were changed at run time")
async def dynamic_values(request: Request) -> Response:
    return answer(service_of(request).live.values)


@router.get("/configuration/runtime", summary="The settings in force, by Pulsar's keys")
async def runtime_configuration(request: Request) -> Response:
    settings = service_of(request).settings
    described_settings = settings_of(type(settings))
    values = {
        described_settings[name].pulsar_key or name: _text(value)
        for name, value in values_of(settings).items()
    }
    return answer(values)


@router.post(
    "/configuration/{setting:name}/{value:name}",
    summary="Change a setting of all brokers at run time",
)
async def update_dynamic(request: Request) -> Response:
    await service_of(request).live.set(text_of(request, "setting"), text_of(request, "value"))
    return empty()


@router.delete(
    "/configuration/{setting:name}",
    summary="Return a setting to the value that each broker was started with",
)
async def delete_dynamic(request: Request) -> Response:
    await service_of(request).live.delete(text_of(request, "setting"))
    return empty()


@router.get("/internal-configuration", summary="The address of the metadata store")
async def internal_configuration(request: Request) -> Response:
    url, root = _metadata(service_of(request).settings)
    return answer(
        {
            "zookeeperServers": url,
            "configurationStoreServers": url,
            "metadataStoreUrl": url,
            "configurationMetadataStoreUrl": url,
            "ledgersRootPath": f"{root}/ledgers",
        }
    )


def _metadata(settings: BrokerSettings) -> tuple[str, str]:
    """Returns the metadata store's URL and the common prefix of its keys."""
    member = getattr(settings, "member", None)
    if member is not None:
        return member.metadata_url, member.metadata_root.rstrip("/")
    data_dir = getattr(settings, "data_dir", None)
    if data_dir is None:
        return "memory:", ""
    return f"rocksdb://{(data_dir / 'metadata').absolute()}", ""


@router.get("/backlog-quota-check", summary="Check backlog quotas now, on all brokers")
async def backlog_quota_check(request: Request) -> Response:
    await service_of(request).upkeep.check_quotas()
    await answers_of_peers(request, _QUOTA_CHECK)
    return done()


@router.get("/{cluster:name}", summary="The brokers of a cluster")
async def list_of_cluster(request: Request) -> Response:
    # As in Pulsar, any name is accepted: some tools only guess the cluster's name.
    return answer(_living(request))


@router.get(
    "/{cluster:name}/{broker:name}/ownedNamespaces", summary="The bundles that a broker owns"
)
async def owned(request: Request) -> Response:
    service, broker = service_of(request), text_of(request, "broker")
    if (peers := peers_of(request)) is not None:
        for peer in peers.routing.brokers():
            if peer.broker_id == broker and not peer.local:
                return peers.redirect(peer, request)
        if broker == service.broker_id:
            return answer(dict.fromkeys(peers.routing.owned(), _OWNED))
    if broker != service.broker_id:
        raise NotFound(f"Broker {broker} is not part of this cluster")
    return answer(dict.fromkeys(await _bundles(service), _OWNED))


async def _bundles(service: BrokerService) -> list[str]:
    """Returns the bundles with a loaded topic, as `tenant/namespace/0x…_0x…`."""
    bundle_names = BundleNames(service)
    bundles: set[str] = set()
    for topic in service.topics:
        bundles.add(f"{topic.name.namespace}/{await bundle_names.of(topic.name)}")
    return sorted(bundles)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)
