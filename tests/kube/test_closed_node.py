"""A closed cluster by the chart alone, where containers run: messages, tools, and every port.

`make e2e ARGS="--part closed"` has the same by the operator, with rotation and revocation.
"""

from collections.abc import Iterator

import pytest
from kubernetes import client
from tests.kube.e2e import closed, ports
from tests.kube.e2e.load import start_idle
from tests.kube.e2e.world import World
from tests.support.kube import Images, Tool, delete_namespace, fresh_namespace

pytestmark = [pytest.mark.kube_node, pytest.mark.timeout(900)]

READY_S = 240


@pytest.fixture(scope="module")
def world(kube_api: client.ApiClient, kubectl: Tool, helm: Tool, images: Images) -> Iterator[World]:
    namespace = fresh_namespace(kube_api)
    made = World(kubectl.within(namespace), helm.within(namespace), images, "r")
    made.has_tls = made.has_tokens = True
    values = closed.values(
        made,
        affinity={"anti_affinity": False},
        components={"toolset": True},
        dashboards={"enabled": False},
        etcd={"replicaCount": 1, "resources": closed.REQUESTS},
        bookkeeper={"replicaCount": 2, "resources": closed.REQUESTS},
        broker={"replicaCount": 1, "resources": closed.REQUESTS},
    )
    try:
        made.install("install", "--wait", f"--timeout={READY_S}s", values=values)
        start_idle(made, closed.STRANGER, "")
        yield made
    finally:
        delete_namespace(kube_api, namespace)


def test_helms_test_passes(world: World) -> None:
    assert "Phase:          Succeeded" in world.helm("test", "r", "--timeout=120s", timeout_s=130)


def test_all_ports_refuse_strangers(world: World) -> None:
    ports.are_closed(world, closed.STRANGER)
    (text,) = world.notes
    assert "bookie 3181, 8000; broker 6651, 8443; etcd 2379, 2380, 2381" in text


def test_clients_need_a_token_that_the_cluster_issued(world: World) -> None:
    token = closed.secret(world, "r-token-admin")["TOKEN"].decode()
    mine, none, damaged = closed.entered(world, token, "", token[:-8] + "AAAAAAAA")
    assert mine == "admitted"
    assert "admitted" not in {none, damaged}


def test_tools_reach_metadata_and_bookies(world: World) -> None:
    text = world.exec("r-toolset-0", "magnetar", "bookie", "list")
    assert {"r-bookie-0", "r-bookie-1"} <= set(text.split())
    checked = world.exec("r-toolset-0", "magnetar", "ledger", "check", timeout_s=120)
    assert "healthy" in checked
