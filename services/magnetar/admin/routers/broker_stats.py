"""`/admin/v2/broker-stats` and `/admin/v2/bookies`."""

from typing import Any, Final, cast

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import answer, done
from magnetar.admin.cluster.route import peers_of
from magnetar.admin.context import balance_of, bookies_of, service_of
from magnetar.admin.metrics.page import MetricsPage
from magnetar.admin.routes import Routes
from magnetar.admin.stats.load_report import load_report
from magnetar.admin.stats.topic import topic_stats
from magnetar.bookie.registration import RACK_DEFAULT
from magnetar.broker.ownership import bundles

router = Routes(prefix="/admin/v2", tags=("brokers",))

RACK_GROUP: Final = "default"
"""Pulsar puts bookies into groups; here they are all in that of its tools."""


@router.get("/broker-stats/topics", summary="Stats of all loaded topics, by namespace and bundle")
async def topics(request: Request) -> Response:
    service = service_of(request)
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    policies: dict[str, dict[str, Any]] = {}
    for topic in service.topics:
        namespace = str(topic.name.namespace)
        if namespace not in policies:
            policies[namespace] = await service.resources.policies(topic.name.namespace)
        bundle = bundles.bundle_of(policies[namespace], topic.name)
        in_bundle = found.setdefault(namespace, {}).setdefault(bundle, {})
        of_domain = in_bundle.setdefault(topic.name.domain, {})
        of_domain[topic.full_name] = topic_stats(topic, service.broker_id)
    return answer(found)


@router.get("/broker-stats/load-report", summary="What this broker reports of its load")
async def get_load_report(request: Request) -> Response:
    """A broker alone has nobody to share with, and answers as Pulsar without load balance."""
    balance, peers = balance_of(request), peers_of(request)
    if balance is None or peers is None:
        return done()
    report = balance.reporter.last or await balance.reporter.measure()
    return answer(load_report(service_of(request), report, peers.routing.owned()))


@router.get("/bookies/all", summary="The living bookies of the cluster, or those of this process")
async def bookies(request: Request) -> Response:
    page = cast("MetricsPage", request.app.state.metrics)
    cluster = bookies_of(request)
    if cluster is None:
        names = [bookie.identity.bookie_id for bookie in page.bookies]
    else:
        names = [info.identity.bookie_id for info in cluster.living()]
    return answer({"bookies": [{"bookieId": name} for name in names]})


@router.get("/bookies/racks-info", summary="Racks of the living bookies that have one")
async def racks(request: Request) -> Response:
    cluster = bookies_of(request)
    found = {
        info.identity.bookie_id: {"rack": info.rack}
        for info in (() if cluster is None else cluster.living())
        if info.rack != RACK_DEFAULT
    }
    return answer({RACK_GROUP: found} if found else {})
