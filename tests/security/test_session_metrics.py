"""What /metrics shows of authentication and authorization."""

from tests.security.sessions import closed_broker, connecting, grant, security_of
from tests.unit.admin.test_metrics import of, scrape
from tests.unit.broker.lifecycle.world import world
from tests.unit.broker.session.stage import TOPIC

from magnetar.admin.metrics.page import MetricsPage
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType


async def test_connections_and_denials_are_counted() -> None:
    async with closed_broker() as w:
        await grant(w, "writer", "produce")
        for data in ("writer", "nobody", "-", "?", "-", "-"):
            client = await connecting(w, data)
            client.say(CommandType.LOOKUP, pb.CommandLookupTopic(topic=TOPIC, request_id=1))
            await client.quiet()
        series = await scrape(MetricsPage(w.service))
        assert of(series, "pulsar_connection_create_success_count") == 2
        assert of(series, "pulsar_connection_create_fail_count") == 3
        connections = ("magnetar_authentications_total", 'of="connection"')
        assert of(series, *connections, 'result="unavailable"') == 1
        assert of(series, *connections, 'result="refreshed"') == 0
        assert of(series, *connections, 'result="expired"') == 0
        assert of(series, "pulsar_authentication_success_total", 'of="connection"') == 2
        refused = ("pulsar_authentication_failures_total", 'of="connection"')
        assert of(series, *refused, 'reason="refused"') == 3
        assert of(series, *refused, 'reason="unavailable"') == 1
        assert of(series, "magnetar_authorization_denied_total", 'right="topic"') == 1
        assert security_of(w).counts.accepted == 2


async def test_a_broker_without_authentication_has_none_of_them() -> None:
    async with world() as w:
        series = await scrape(MetricsPage(w.service))
        assert not [name for name, _ in series if "authentic" in name or "authoriz" in name]
