"""`magnetar cluster` as users type it: up, status, add, kill, restart, remove, logs, down."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pulsar
import pytest
from tests.support.cluster_processes import kill_all, wait_for

from magnetar.cluster.local.cluster import LocalCluster

RUN_TIMEOUT_S = 100

pytestmark = pytest.mark.timeout(240)


def magnetar(*words: str) -> tuple[int, str]:
    """Returns the exit code and the output."""
    done = subprocess.run(
        [sys.executable, "-m", "magnetar.cli.main", "cluster", *words],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("up") / "cluster"
    config = directory.parent / "settings.conf"
    config.write_text("open_ledger_grace_ms=500\nlost_bookie_delay_s=1\nensemble_size=1\n")
    config.write_text(config.read_text() + "write_quorum=1\nack_quorum=1\nrack=/a\n")
    config.write_text(config.read_text() + "clusterName=shop\nwebServicePort=9999\n")
    code, text = magnetar(
        *("up", "--detach", "--dir", str(directory), "--base", "free"),
        *("--bookies", "1", "--brokers", "1", "--config", str(config)),
    )
    try:
        assert code == 0, text
        assert "the cluster is ready" in text
        assert "webServicePort in " in text
        assert "has no effect: each member has its own" in text
        yield directory
    finally:
        kill_all(LocalCluster(directory))


def status(directory: Path) -> dict[str, str]:
    """Returns the state of each member."""
    _, text = magnetar("status", "--json", "--dir", str(directory))
    return {row["name"]: row["state"] for row in json.loads(text)}


def all_ready(directory: Path) -> bool:
    """A member that is slow to answer is shown as one that is not, for a moment."""
    return set(status(directory).values()) == {"ready"}


def test_a_first_message(directory: Path) -> None:
    with closing(pulsar.Client(LocalCluster(directory).service_url)) as client:
        client.subscribe("hello", "kept")
        assert client.create_producer("hello").send(b"hi")


def test_the_settings_file_sets_the_name_of_the_cluster(directory: Path) -> None:
    with httpx.Client(base_url=LocalCluster(directory).http_urls[0], trust_env=False) as admin:
        assert admin.get("/admin/v2/clusters").json() == ["shop"]
    other = directory.parent / "other.conf"
    other.write_text("clusterName=shop\n")
    again = ("up", "--detach", "--dir", str(directory), "--config")
    code, text = magnetar(*again, str(other))
    assert (code, "--config is for a new cluster" in text) == (1, True)
    code, text = magnetar(*again, str(directory.parent / "settings.conf"))
    assert code == 0, text


def test_a_broker_lists_the_bookies_of_the_cluster(directory: Path) -> None:
    with httpx.Client(base_url=LocalCluster(directory).http_urls[0], trust_env=False) as admin:
        assert admin.get("/admin/v2/bookies/all").json() == {"bookies": [{"bookieId": "bookie-1"}]}
        racks = admin.get("/admin/v2/bookies/racks-info").json()
        assert racks == {"default": {"bookie-1": {"rack": "/a"}}}


def test_status_is_a_table_and_its_exit_code_reports_health(directory: Path) -> None:
    wait_for(lambda: all_ready(directory), "all are ready")
    code, text = magnetar("status", "--dir", str(directory))
    assert code == 0
    header, *rows = text.splitlines()
    assert header.split() == [
        "member",
        "state",
        "address",
        "http",
        "pid",
        "up",
        "cpu",
        "memory",
        "holds",
    ]
    assert [row.split()[:2] for row in rows] == [
        ["etcd-1", "ready"],
        ["bookie-1", "ready"],
        ["broker-1", "ready"],
    ]
    assert "bundles" in rows[2]
    assert "MiB" in rows[1]


def test_members_are_added_killed_restarted_and_removed(directory: Path) -> None:
    where = ("--dir", str(directory))
    assert magnetar("add", "bookie", *where)[0] == 0
    assert magnetar("add", "broker", *where)[0] == 0
    assert set(status(directory)) == {"etcd-1", "bookie-1", "bookie-2", "broker-1", "broker-2"}
    assert magnetar("pause", "broker-2", *where)[0] == 0
    assert status(directory)["broker-2"] == "paused"
    assert magnetar("resume", "broker-2", *where)[0] == 0
    assert magnetar("kill", "broker-2", *where)[0] == 0
    code, text = magnetar("status", *where)
    assert code == 1
    assert "stopped" in text
    assert magnetar("kill", "broker-2", *where) == (1, "magnetar: broker-2 does not run\n")
    assert magnetar("restart", "broker-2", *where)[0] == 0
    assert "broker is ready" in magnetar("logs", "broker-2", *where)[1]
    code, text = magnetar("remove", "broker-2", *where)
    assert (code, "removed" in text) == (0, True), text
    code, text = magnetar("remove", "bookie-2", *where)
    assert (code, "removed" in text) == (0, True), text
    wait_for(lambda: all_ready(directory), "all are ready")


def test_the_last_bookie_is_not_removed(directory: Path) -> None:
    code, text = magnetar("remove", "bookie-1", "--dir", str(directory))
    assert code == 1
    assert "bookie-1 was not removed" in text
    wait_for(lambda: status(directory)["bookie-1"] == "ready", "it is ready")


def test_errors_name_what_does_not_exist(directory: Path, tmp_path: Path) -> None:
    code, text = magnetar("kill", "broker-9", "--dir", str(directory))
    assert (code, "no member broker-9" in text) == (1, True)
    code, text = magnetar("status", "--dir", str(tmp_path))
    assert (code, "magnetar cluster up" in text) == (1, True)


def test_down_and_up_keep_the_data_and_ctrl_c_stops_all(directory: Path) -> None:
    where = ("--dir", str(directory))
    assert magnetar("down", *where)[0] == 0
    assert set(status(directory).values()) == {"stopped"}
    log = directory.parent / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            [sys.executable, "-m", "magnetar.cli.main", "cluster", "up", *where],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for(lambda: "broker-1: ready" in log.read_text(), "all shown as ready", 60)
        cluster = LocalCluster(directory)
        with closing(pulsar.Client(cluster.service_url)) as client:
            assert client.subscribe("hello", "kept").receive(20_000).data() == b"hi"
        cluster.kill("bookie-1")
        wait_for(lambda: "bookie-1: stopped" in log.read_text(), "the kill is shown")
        os.kill(up.pid, signal.SIGINT)
        begun = time.monotonic()
        assert up.wait(RUN_TIMEOUT_S) == 0
        print(f"all ended after {time.monotonic() - begun:.1f} s")
        assert set(status(directory).values()) == {"stopped"}
    finally:
        up.kill()
        up.wait()
