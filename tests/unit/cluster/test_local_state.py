"""The saved state of a local cluster, and its ports. No process is started."""

import socket
import threading
from pathlib import Path

import pytest

from magnetar.cluster.local import etcd, members, ports, state
from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.config import read_config
from magnetar.cluster.local.members import Role
from magnetar.core.errors import Conflict, NotFound, PreconditionFailed


def create(tmp_path: Path, **how: object) -> LocalCluster:
    return LocalCluster.create(tmp_path / "c", base="free", **how)  # type: ignore[arg-type]


def test_a_cluster_is_reopened_with_the_state_it_was_created_with(tmp_path: Path) -> None:
    cluster = create(tmp_path, bookies=3, brokers=2, settings={"auto_split": False, "rack": "/a/b"})
    names = [member.name for member in LocalCluster(cluster.directory).members]
    assert names == ["etcd-1", "bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2"]
    assert (cluster.directory / "magnetar.conf").read_text() == "auto_split=false\nrack=/a/b\n"
    all_ports = [port for member in cluster.members for port in member.ports.values()]
    assert len(all_ports) == len(set(all_ports)) == 12
    assert cluster.service_url.count("127.0.0.1:") == 2
    assert cluster.metadata_url == f"etcd:http://{cluster.member('etcd-1').address}"
    with pytest.raises(Conflict, match="already"):
        create(tmp_path)


def test_a_file_of_settings_names_the_cluster(tmp_path: Path) -> None:
    conf = tmp_path / "cluster.conf"
    conf.write_text("# ours\nclusterName = shop\nauto_split=false\nport=7777\nbookiePort=\n")
    config = read_config(conf)
    assert (config.name, config.settings["auto_split"]) == ("shop", "false")
    assert config.overridden == (f"port in {conf} line 4",)
    toml = tmp_path / "cluster.toml"
    toml.write_text('cluster_name = "shop"\nauto_split = false\n')
    assert read_config(toml).settings == {"cluster_name": "shop", "auto_split": "false"}
    cluster = create(tmp_path, name=config.name, settings=config.settings)
    assert cluster.settings() == config.settings
    conf.write_text("auto_split=false\n")
    assert read_config(conf).name == "magnetar"
    conf.write_text("clusterName=a\ncluster_name=b\n")
    with pytest.raises(PreconditionFailed, match=r"line 1 and cluster_name in .* line 2 name diff"):
        read_config(conf)
    with pytest.raises(PreconditionFailed, match="cannot read"):
        read_config(tmp_path / "missing.conf")


def test_a_missing_cluster_is_refused_with_the_command_that_creates_it(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="magnetar cluster up --dir"):
        LocalCluster(tmp_path)


def test_a_members_name_is_never_reused(tmp_path: Path) -> None:
    cluster = create(tmp_path, bookies=1, brokers=0)
    assert cluster.add(Role.BOOKIE, start=False).name == "bookie-2"
    cluster.remove("bookie-2", force=True)
    assert cluster.add(Role.BOOKIE, start=False).name == "bookie-3"
    with pytest.raises(NotFound, match=r"bookie-2.*bookie-1, bookie-3"):
        cluster.member("bookie-2")


def test_members_of_etcd_are_neither_added_nor_removed(tmp_path: Path) -> None:
    cluster = create(tmp_path, bookies=0, brokers=0)
    with pytest.raises(PreconditionFailed):
        cluster.add(Role.ETCD)
    with pytest.raises(PreconditionFailed):
        cluster.remove("etcd-1")
    with pytest.raises(PreconditionFailed, match="does not run"):
        cluster.kill("etcd-1")


def test_concurrent_changes_do_not_overwrite_each_other(tmp_path: Path) -> None:
    cluster = create(tmp_path, bookies=0, brokers=0)

    def add() -> None:
        for _ in range(5):
            cluster.add(Role.BROKER, start=False)

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({member.name for member in cluster.named(Role.BROKER)}) == 15


def test_ports_are_standard_or_from_a_base_or_free() -> None:
    taken: set[int] = set()
    assert ports.choose("20000", "broker", "http", 3, "127.0.0.1", taken) % 20 == 2
    free = ports.choose("free", "broker", "port", 1, "127.0.0.1", taken)
    assert ports.FREE_FIRST <= free <= ports.FREE_LAST
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        offset = ports.BASE_OFFSETS["bookie", "port"]
        with pytest.raises(Conflict, match=rf"{port}.*bookie-1.*--base"):
            ports.choose(str(port - offset), "bookie", "port", 1, "127.0.0.1", taken)
    rows = {
        (ports.BASE_OFFSETS[key], ports.BASE_OFFSETS[key] + ports.MEMBERS_PER_ROLE_MAX)
        for key in ports.STANDARD
    }
    assert len(rows) == len(ports.STANDARD)


def test_command_lines(tmp_path: Path) -> None:
    cluster = create(tmp_path, bookies=1, brokers=1, etcds=3, autorecoveries=1)
    all_members = cluster.members
    (bookie,) = cluster.named(Role.BOOKIE)
    config = tmp_path / "absent.conf"
    words = members.command(bookie, all_members, cluster.directory, "blue", config)
    assert words[3:5] == ["bookie", "--metadata-url"]
    assert words[5].count("http://") == 3
    assert "--config" not in words
    config.write_text("")
    (recovery,) = cluster.named(Role.AUTORECOVERY)
    words = members.command(recovery, all_members, cluster.directory, "blue", config)
    assert words[-2:] == ["--config", str(config)]
    assert "--port" not in words


def test_a_missing_etcd_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotFound, match="apt-get install -y etcd-server"):
        etcd.program()


def test_an_unreadable_state_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / state.STATE_FILE).write_text("{")
    with pytest.raises(Conflict, match=state.STATE_FILE):
        LocalCluster(tmp_path)
