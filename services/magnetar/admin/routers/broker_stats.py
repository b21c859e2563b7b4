"""`/admin/v2/broker-stats` and `/admin/v2/bookies`: stats of this broker, and the bookies."""

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.placement import peers_of
from magnetar.admin.context import BundleNames, balance_of, bookies_of, metrics_page_of, service_of
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.routes import Routes
from magnetar.admin.stats.load_report import load_report
from magnetar.admin.stats.topic import TopicStats, topic_stats

router = Routes(prefix="/admin/v2", tags=("brokers",))


@router.get("/broker-stats/topics", summary="Stats of all loaded topics, by namespace and bundle")
async def topics(request: Request) -> Response:
    service = service_of(request)
    stats: dict[str, dict[str, dict[str, dict[str, TopicStats]]]] = {}
    bundle_names = BundleNames(service)
    for topic in service.topics:
        bundle = await bundle_names.of(topic.name)
        of_bundle = stats.setdefault(str(topic.name.namespace), {}).setdefault(bundle, {})
        of_domain = of_bundle.setdefault(topic.name.domain, {})
        of_domain[topic.full_name] = topic_stats(topic, service.broker_id)
    return answer(stats)


@router.get("/broker-stats/load-report", summary="This broker's load report")
async def get_load_report(request: Request) -> Response:
    """A single broker has no load balance and answers as Pulsar does if it is off."""
    balance, peers = balance_of(request), peers_of(request)
    if balance is None or peers is None:
        return done()
    report = balance.reporter.last or await balance.reporter.measure()
    return answer(load_report(service_of(request), report, peers.routing.owned()))


@router.get("/bookies/all", summary="The living bookies of the cluster, or those of this process")
async def bookies(request: Request) -> Response:
    cluster = bookies_of(request)
    if cluster is None:
        names = [bookie.identity.bookie_id for bookie in metrics_page_of(request).bookies]
    else:
        names = [info.identity.bookie_id for info in cluster.living()]
    return answer({"bookies": [{"bookieId": name} for name in names]})
