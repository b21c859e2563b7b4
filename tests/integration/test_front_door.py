"""`magnetar standalone` as users and init systems see it: banner, signals, refusals, wipe."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.server_process import ServerProcess

from magnetar import __version__
from magnetar.cli import main as cli

REFUSED_S_MAX = 50.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


def refused(*flags: str, **environment: str) -> tuple[int, str]:
    """Exit code and stderr of a start that must not succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "magnetar.cli.main", "standalone", *flags],
        capture_output=True,
        text=True,
        timeout=REFUSED_S_MAX,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stderr


def test_the_banner_has_the_addresses_and_next_commands(server: ServerProcess) -> None:
    text = server.log_tail()
    assert "messaging service is ready" in text
    for wanted in (server.service_url, server.http_url, "import pulsar", "curl", "pulsar-admin"):
        assert wanted in text


def test_the_ready_file_has_pid_addresses_and_version(server: ServerProcess) -> None:
    assert json.loads((server.data_dir / "standalone.json").read_text()) == {
        "pid": server.pid,
        "service_url": server.service_url,
        "http_url": server.http_url,
        "version": __version__,
    }


def test_the_default_namespace_exists(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"{server.http_url}/admin/v2/namespaces/public") as answer:  # noqa: S310
        assert "public/default" in json.load(answer)


def test_the_error_names_a_port_in_use(server: ServerProcess, tmp_path: Path) -> None:
    code, text = refused("--data-dir", str(tmp_path / "d"), "--port", str(server.port))
    assert code == 1
    assert f"port {server.port} on 127.0.0.1 is in use" in text
    assert "--port" in text
    assert "Traceback" not in text
    flags = ("--port", "0", "--http-port", str(server.http_port))
    code, text = refused("--data-dir", str(tmp_path / "d"), *flags)
    assert code == 1
    assert f"port {server.http_port} " in text
    assert "--http-port" in text


def test_the_error_names_a_locked_data_directory_and_its_holder(server: ServerProcess) -> None:
    flags = ("--data-dir", str(server.data_dir), "--port", "0", "--http-port", "0")
    for more in ((), ("--wipe",)):
        code, text = refused(*flags, *more)
        assert code == 1
        assert f"data directory {server.data_dir} is in use" in text
        assert str(server.pid) in text
        assert "Traceback" not in text
    assert (server.data_dir / "standalone.json").exists(), "the refused start changed it"


def test_a_start_with_a_port_in_use_does_not_wipe(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with ServerProcess(tmp_path) as first:
        first.terminate()
    before = sorted(data_dir.rglob("*"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _ = refused("--data-dir", str(data_dir), "--port", port, "--wipe")
    assert code == 1
    assert sorted(data_dir.rglob("*")) == before


def test_the_error_names_a_foreign_host(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path / "d"), "--port", "0", "--http-port", "0")
    code, text = refused(*flags, "--host", "192.0.2.1")
    assert code == 1
    assert "192.0.2.1" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_0(tmp_path: Path, number: signal.Signals) -> None:
    with ServerProcess(tmp_path) as server:
        os.kill(server.pid, number)
        assert server.wait() == 0
    assert not (server.data_dir / "standalone.json").exists()
    assert "Traceback" not in server.log_tail()


def test_a_start_after_a_kill_has_the_same_data(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        request = urllib.request.Request(  # noqa: S310
            f"{server.http_url}/admin/v2/persistent/public/default/kept", method="PUT"
        )
        urllib.request.urlopen(request).close()  # noqa: S310
        server.kill()
        server.start()
        with urllib.request.urlopen(  # noqa: S310
            f"{server.http_url}/admin/v2/persistent/public/default"
        ) as answer:
            assert json.load(answer) == ["persistent://public/default/kept"]
        assert server.terminate() == 0
        server.flags = ("--wipe",)
        server.start()
        with urllib.request.urlopen(  # noqa: S310
            f"{server.http_url}/admin/v2/persistent/public/default"
        ) as answer:
            assert json.load(answer) == []


def test_wipe_refuses_a_foreign_directory(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("")
    code, text = refused("--data-dir", str(tmp_path), "--port", "0", "--http-port", "0", "--wipe")
    assert code == 1
    assert "not Magnetar's" in text
    assert (tmp_path / "photo.jpg").exists()


@pytest.mark.parametrize(
    ("flags", "environment", "wanted"),
    [
        ((), {"MAGNETAR_HTP_PORT": "1"}, "did you mean MAGNETAR_HTTP_PORT"),
        ((), {"PULSAR_PREFIX_maxMessageSize": "x"}, "PULSAR_PREFIX_maxMessageSize"),
        (("--config", "absent.conf"), {}, "absent.conf"),
        (("--port", "70000"), {}, "port is 70000"),
    ],
)
def test_an_invalid_setting_is_one_line_and_exit_2(
    flags: tuple[str, ...], environment: dict[str, str], wanted: str
) -> None:
    code, text = refused(*flags, **environment)
    assert code == 2
    assert wanted in text
    assert len(text.splitlines()) == 1


def test_help_lists_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(["--help"])
    assert raised.value.code == 0
    text = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert name in text
    code = "import sys; from magnetar.cli.main import main\n"
    code += "try: main(['--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit(any(name in sys.modules for name in ('asyncio', 'pydantic', 'pulsar')))"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_the_version_has_a_command_and_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.splitlines() == [f"magnetar {__version__}"] * 2


def test_config_explains_by_both_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "explain", "maxMessageSize"]) == 0
    by_pulsars_name = capsys.readouterr().out
    assert cli.main(["config", "explain", "message_bytes_max"]) == 0
    assert capsys.readouterr().out == by_pulsars_name
    assert "5242880" in by_pulsars_name
    assert cli.main(["config", "explain", "numIOThreads"]) == 0
    assert "no effect" in capsys.readouterr().out
    assert cli.main(["config", "explain", "maxMesageSize"]) == 1
    assert "did you mean maxMessageSize" in capsys.readouterr().err


def test_config_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "list"]) == 0
    assert "key_shared_points" in capsys.readouterr().out
