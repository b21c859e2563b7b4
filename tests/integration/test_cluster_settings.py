"""The error of a cluster's process that cannot start: one line that names the cause."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster_processes import get, get_json, running_cluster, wait_for
from tests.support.etcd import free_ports

from magnetar.cluster.local import process
from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Role, command

RUN_TIMEOUT_S = 50


ENDS_S_MAX = 30
"""Less than a start waits for the store."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), bookies=1, brokers=0) as cluster:
        yield cluster


def magnetar(*words: str, timeout_s: float = RUN_TIMEOUT_S) -> tuple[int, str]:
    """Returns the exit code and the output."""
    done = subprocess.run(
        [sys.executable, "-m", "magnetar.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("role", ["broker", "bookie", "autorecovery", "cluster"])
def test_every_role_has_help(role: str) -> None:
    code, text = magnetar(role, "--help")
    assert code == 0
    assert "--config" in text or "up" in text


@pytest.mark.parametrize(
    ("role", "flags", "named"),
    [
        ("broker", ("--ack-quorum", "3"), "ack_quorum 3"),
        ("broker", ("--http-port", "70000"), "http_port is 70000 (--http-port): allowed: 0 to"),
        ("bookie", ("--port", "0"), "bookie_id must be set"),
    ],
)
def test_invalid_settings_exit_with_2(role: str, flags: tuple[str, ...], named: str) -> None:
    code, text = magnetar(role, *flags)
    assert code == 2
    assert named in text
    assert "Traceback" not in text


def test_contradicting_listeners_exit_with_2(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("advertisedListeners=internal\n")
    ports = ("--port", "0", "--http-port", "0")
    code, text = magnetar("broker", "--config", str(config), *ports)
    assert code == 2
    assert "advertised_listeners" in text


def test_bookkeepers_file_is_accepted(tmp_path: Path, cluster: LocalCluster) -> None:
    config = tmp_path / "bookkeeper.conf"
    port, http_port = free_ports(2)
    config.write_text(
        f"bookieId=from-file\nbookiePort={port}\nhttpServerPort={http_port}\n"
        f"journalDirectories={tmp_path / 'disk'}\nledgerDirectories={tmp_path / 'disk'}\n"
        f"metadataServiceUri={cluster.metadata_url}\nclusterName=test\nnettyMaxFrameSizeBytes=1\n"
    )
    started = process.start(
        [sys.executable, "-m", "magnetar.cli.main", "bookie", "--config", str(config)],
        tmp_path / "log",
        os.environ,
    )
    try:
        wait_for(lambda: "bookie is ready" in (tmp_path / "log").read_text(), "ready")
        assert (tmp_path / "disk" / "cluster.json").exists()
        assert "nettyMaxFrameSizeBytes" in (tmp_path / "log").read_text()
        process.send(started, signal.SIGTERM)
        assert process.wait_end(started, RUN_TIMEOUT_S)
    finally:
        process.kill(started)


def test_different_directories_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "bookkeeper.conf"
    config.write_text("journalDirectories=/a\nledgerDirectories=/b\n")
    code, text = magnetar("bookie", "--config", str(config))
    assert code == 2
    assert "both set data_dir" in text


def test_the_error_names_a_store_that_does_not_answer(tmp_path: Path) -> None:
    config = tmp_path / "m.conf"
    config.write_text("metadata_wait_s=1\n")
    (nobody,) = free_ports(1)
    url = f"etcd:http://127.0.0.1:{nobody}"
    code, text = magnetar(
        *("autorecovery", "--metadata-url", url, "--http-port", "0", "--config", str(config))
    )
    assert code == 1
    assert f"{url} (metadata_url) could not be reached" in text
    assert "Traceback" not in text


def test_a_process_that_waits_for_the_store_answers_probes_and_stops_at_once(
    tmp_path: Path,
) -> None:
    port, nobody = free_ports(2)
    url = f"etcd:http://127.0.0.1:{nobody}"
    started = process.start(
        [
            *(sys.executable, "-m", "magnetar.cli.main", "broker", "--metadata-url", url),
            *("--port", "0", "--http-port", str(port)),
        ],
        tmp_path / "log",
        os.environ,
    )
    try:
        base = f"http://127.0.0.1:{port}"
        wait_for(lambda: _answers(base), "health is served")
        assert get(base + "/readyz") == (503, "waiting for the metadata store\n")
        assert get_json(base + "/status")["role"] == "broker"
        process.send(started, signal.SIGTERM)
        assert process.wait_end(started, ENDS_S_MAX)
        assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        process.kill(started)


def _answers(base: str) -> bool:
    try:
        return get(base + "/healthz")[0] == 200
    except OSError:
        return False


def test_the_url_of_an_unknown_store_is_refused() -> None:
    code, text = magnetar("broker", "--metadata-url", "zk:a:2181", "--port=0", "--http-port=0")
    assert code == 1
    assert "zk:a:2181" in text
    assert "etcd:" in text


def test_the_error_names_a_port_in_use_and_its_flag(cluster: LocalCluster) -> None:
    (bookie,) = cluster.named(Role.BOOKIE)
    taken = str(bookie.ports["port"])
    code, text = magnetar("bookie", "--port", taken, "--http-port", "0")
    assert code == 1
    assert f"port {taken} on 127.0.0.1 is in use; choose another with --port" in text


def test_the_name_of_another_cluster_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    code, text = magnetar(
        *("bookie", "--metadata-url", cluster.metadata_url, "--cluster-name", "other"),
        *("--bookie-id", "b", "--port", "0", "--http-port", "0", "--data-dir", str(tmp_path / "d")),
    )
    assert code == 1
    assert "is of cluster 'test', and cluster_name is 'other'" in text


def test_the_disk_of_another_bookie_or_cluster_is_refused(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (bookie,) = cluster.named(Role.BOOKIE)
    cluster.stop(bookie.name)
    directory = cluster.directory / bookie.name
    config = tmp_path / "m.conf"
    ports = ("--port", "0", "--http-port", "0", "--cluster-name", "test")
    words = command(bookie, cluster.members, cluster.directory, "test", tmp_path / "absent")
    try:
        other_name = [*words[3:], "--bookie-id", "somebody", *ports]
        code, text = magnetar(*other_name)
        assert code == 1
        assert f"holds the data of bookie '{bookie.name}', not of 'somebody'" in text
        config.write_text("metadata_root=/elsewhere\n")
        code, text = magnetar(*words[3:], *ports, "--config", str(config))
        assert code == 1
        assert "holds the data of cluster 'test'" in text
        assert "metadata_root" in text
        assert directory.exists()
    finally:
        cluster.start(bookie.name)
        cluster.wait_ready([bookie.name])


def test_a_second_bookie_with_the_same_id_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    (bookie,) = cluster.named(Role.BOOKIE)
    config = tmp_path / "m.conf"
    config.write_text("session_timeout_ms=3000\n")
    code, text = magnetar(
        *("bookie", "--metadata-url", cluster.metadata_url, "--cluster-name", "test"),
        *("--bookie-id", bookie.name, "--data-dir", str(tmp_path / "d"), "--config", str(config)),
        *("--port", str(free_ports(1)[0]), "--http-port", "0"),
    )
    assert code == 1
    assert f"another living bookie is called {bookie.name}" in text


def test_autorecovery_runs_in_a_separate_process(cluster: LocalCluster) -> None:
    added = cluster.add(Role.AUTORECOVERY)
    cluster.wait_ready([added.name])
    assert get(added.http_url + "/readyz") == (200, "ok\n")
    assert get_json(added.http_url + "/status")["role"] == "autorecovery"
    assert "auditor_NUM_UNDER_REPLICATED_LEDGERS 0" in get(added.http_url + "/metrics")[1]
    cluster.remove(added.name)


@pytest.mark.parametrize("module", ["broker_process", "autorecovery_process"])
def test_processes_without_disks_import_no_storage_engine(module: str) -> None:
    code = f"import sys, magnetar.cluster.{module}; sys.exit('rocksdict' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_bookie_imports_no_module_of_brokers() -> None:
    code = (
        "import sys, magnetar.cli.bookie.serving, magnetar.cluster.bookie_process;"
        "print([m for m in ('fastapi', 'pydantic', 'uvicorn', 'fastavro', 'httpx') "
        "if m in sys.modules], [m for m in sys.modules if m.startswith('magnetar.broker.topic')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[] []\n", done.stdout + done.stderr
