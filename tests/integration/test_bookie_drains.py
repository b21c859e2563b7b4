"""Bookies emptied through the admin REST: work survives, refusals name ledgers, nothing is lost.

Real processes: autorecovery in the bookies does the work, any broker is asked.
"""

import json
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.integration.test_autorecovery import command
from tests.support.cluster_processes import brokers, get, get_json, running_cluster, wait_for

from magnetar.cluster.local.cluster import LocalCluster

MESSAGES = 40
TOPICS = 6
QUICK: dict[str, Any] = {
    "lost_bookie_delay_s": 1,
    "open_ledger_grace_ms": 500,
    "ensemble_size": 2,
    "write_quorum": 2,
    "ack_quorum": 2,
}


def rest(cluster: LocalCluster, path: str, broker: int = 0) -> str:
    return f"{brokers(cluster)[broker].http_url}/admin/v2/magnetar/{path}"


def ask(url: str, method: str = "POST", body: object = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return int(answer.status)


def drain(cluster: LocalCluster, bookie: str, broker: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = get_json(rest(cluster, f"bookies/{bookie}/drain", broker))
    return found


def wait_state(
    cluster: LocalCluster, bookie: str, *states: str, timeout_s: float = 60
) -> dict[str, Any]:
    wait_for(lambda: drain(cluster, bookie)["state"] in states, f"{bookie} {states}", timeout_s)
    return drain(cluster, bookie)


def healthy(cluster: LocalCluster) -> bool:
    return bool(get_json(rest(cluster, "ledgers/health"))["healthy"])


def publish(cluster: LocalCluster, tmp_path: Path, topics: int = TOPICS) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log"))
    with closing(pulsar.Client(cluster.service_url, logger=logger)) as client:
        for number in range(topics):
            topic = f"persistent://public/default/kept-{number}"
            client.subscribe(topic, "all").close()
            producer = client.create_producer(topic)
            for index in range(MESSAGES):
                producer.send(b"%d" % index)
            producer.close()


def read_all(cluster: LocalCluster, tmp_path: Path) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "reader.log"))
    with closing(pulsar.Client(cluster.service_url, logger=logger)) as client:
        for number in range(TOPICS):
            consumer = client.subscribe(f"persistent://public/default/kept-{number}", "all")
            found = [consumer.receive(20_000).data() for _ in range(MESSAGES)]
            assert found == [b"%d" % index for index in range(MESSAGES)]


@pytest.mark.timeout(240)
def test_a_drain_is_proven_survives_its_node_and_can_be_taken_back(tmp_path: Path) -> None:
    with running_cluster(tmp_path, bookies=4, brokers=2, **QUICK) as cluster:
        publish(cluster, tmp_path)
        wait_for(lambda: healthy(cluster), "all ledgers healthy")
        status, text = get(rest(cluster, "bookies/bookie-4/drain"))
        assert (status, "not being emptied" in text) == (404, True)
        url = rest(cluster, "bookies/bookie-4/drain")
        assert ask(url, body={"reason": "scale-down"}) == 202
        assert ask(rest(cluster, "bookies/bookie-4/drain", 1)) == 202
        # Whoever works at it may go: another bookie's autorecovery goes on.
        cluster.kill("bookie-1")
        cluster.start("bookie-1")
        cluster.wait_ready(["bookie-1"])
        found = wait_state(cluster, "bookie-4", "removable", "refused")
        while found["state"] == "refused":
            # The proof met bookie-1 while it was away. Who wants the drain asks again.
            assert "too few copies" in found["refused"]
            assert ask(url, body={"reason": "scale-down"}) == 202
            found = wait_state(cluster, "bookie-4", "removable", "refused")
        assert found["reason"] == "scale-down"
        assert found.get("ledgersLeft", 0) == 0
        assert found["provenMs"] >= found["requestedMs"]
        listed = get_json(rest(cluster, "bookies/drains"))
        assert [one["bookieId"] for one in listed] == ["bookie-4"]

        cluster.kill("bookie-4")
        read_all(cluster, tmp_path)
        cluster.start("bookie-4")
        cluster.wait_ready(["bookie-4"])
        assert ask(url, "DELETE") == 204
        assert get(url)[0] == 404
        # The command ends a drain as whole as the request does.
        assert ask(url, body={"reason": "scale-down"}) == 202
        decommission = ("bookie", "decommission", "--bookie-id", "bookie-4", "--cancel")
        code, text = command(cluster.metadata_url, *decommission)
        assert (code, json.loads(text)["text"]) == (0, "cancelled")
        assert get(url)[0] == 404
        wait_for(
            lambda: (
                not any(b["draining"] for b in get_json(rest(cluster, "ledgers/health"))["bookies"])
            ),
            "the mark to be gone",
        )


@pytest.mark.timeout(240)
def test_too_few_bookies_are_refused_and_unknown_ones_hold_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path, bookies=2, brokers=1, **QUICK) as cluster:
        publish(cluster, tmp_path)
        for bookie in ("bookie-2", "nobody"):
            ask(rest(cluster, f"bookies/{bookie}/drain"))
        assert wait_state(cluster, "nobody", "removable").get("ledgersTotal", 0) == 0
        refused = wait_state(cluster, "bookie-2", "refused")
        assert "Add a bookie first" in refused["refused"]
        assert refused["inTheWay"][0]["ledger_id"] >= 0
        # What was refused at first glance was never marked: it still takes new ledgers.
        assert not any(b["draining"] for b in get_json(rest(cluster, "ledgers/health"))["bookies"])


@pytest.mark.timeout(240)
def test_a_bookie_that_lies_is_found_before_another_goes(tmp_path: Path) -> None:
    # Counted as lost while it is stopped, bookie-1 would be given new copies, which tell the truth.
    # Autorecovery's first audit waits as long.
    patient = QUICK | {"lost_bookie_delay_s": 30}
    with running_cluster(tmp_path, bookies=3, brokers=1, **patient) as cluster:
        # So many that bookie-1 has some ledgers together with bookie-3, whatever is drawn.
        publish(cluster, tmp_path, 4 * TOPICS)
        cluster.stop("bookie-1")
        logs = [*(cluster.directory / "bookie-1").rglob("*.log")]
        damaged = 0
        for path in logs:
            content = bytearray(path.read_bytes())
            if len(content) > 4096 and path.parent.name != "journal":
                for at in range(2048, len(content), 97):
                    content[at] ^= 0x40
                path.write_bytes(bytes(content))
                damaged += 1
        assert damaged, [str(path) for path in logs]
        cluster.start("bookie-1")
        cluster.wait_ready(["bookie-1"])
        ask(rest(cluster, "bookies/bookie-3/drain"))
        refused = wait_state(cluster, "bookie-3", "refused", "removable", timeout_s=120)
        assert refused["state"] == "refused", refused
        named = [one["ledger_id"] for one in refused["inTheWay"]]
        assert named
        assert "could be proven" in refused["refused"]
        # What was found is put right from the copies that are left; then it may go.
        wait_for(lambda: not get_json(rest(cluster, "ledgers/health"))["ledgers"], "repaired", 60)
        ask(rest(cluster, "bookies/bookie-3/drain"))
        assert wait_state(cluster, "bookie-3", "refused", "removable")["state"] == "removable"
        cluster.stop("bookie-3")
        read_all(cluster, tmp_path)
