"""The shell of the commands that run a process of a cluster."""

from contextlib import AsyncExitStack
from pathlib import Path

from magnetar.bookie.api import BookieIdentity
from magnetar.cli import autorecovery, broker
from magnetar.cli.bookie import serving
from magnetar.cluster.bookie_process import BookieProcess
from magnetar.cluster.broker_process import BrokerProcess
from magnetar.cluster.nodes import Node, Readiness
from magnetar.settings.bookie import BookieProcessSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import compose
from magnetar.settings.member import AutorecoveryProcessSettings

CLUSTER = "  cluster   magnetar   (metadata: etcd:http://127.0.0.1:2379)\n"


def test_every_banner_names_the_role_the_cluster_and_the_addresses(tmp_path: Path) -> None:
    running = Node(http_url="http://h:1", readiness=Readiness(), closing=AsyncExitStack())
    assert autorecovery.COMMAND.banner_text(running, AutorecoveryProcessSettings()) == (
        f"autorecovery is ready\n{CLUSTER}  health    http://h:1   (/readyz, /metrics)\n"
    )
    serving_broker = BrokerProcess(
        http_url="http://h:1",
        readiness=Readiness(),
        closing=AsyncExitStack(),
        service_url="pulsar://h:2",
    )
    assert broker.COMMAND.banner_text(serving_broker, BrokerProcessSettings()) == (
        f"broker is ready\n{CLUSTER}"
        "  clients   pulsar://h:2\n"
        "  admin     http://h:1   (health: /readyz, metrics: /metrics)\n"
    )
    serving_bookie = BookieProcess(
        http_url="http://h:1",
        readiness=Readiness(),
        closing=AsyncExitStack(),
        identity=BookieIdentity("b", "i"),
        address="h:2",
    )
    settings = compose(BookieProcessSettings, data_dir=tmp_path)
    assert serving.COMMAND.banner_text(serving_bookie, settings) == (
        f"bookie is ready\n{CLUSTER}"
        "  bookie    b, incarnation i\n"
        "  brokers   h:2\n"
        "  health    http://h:1   (/readyz, /metrics)\n"
        f"  data      {tmp_path}\n"
    )
