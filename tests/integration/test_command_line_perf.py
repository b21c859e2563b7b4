"""`magnetar perf` on a real standalone: counts add up; a terminal shows a live line."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from tests.support.server_process import ServerProcess

from magnetar.cli.main import main

PATIENCE_S = 120.0
COUNT = 3000

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("perf")
    with ServerProcess(root, environment={"MAGNETAR_TRANSACTIONS": "true"}) as server:
        yield server


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/perf-{uuid4().hex[:8]}"


def perf(
    server: ServerProcess, capfd: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    capfd.readouterr()
    code = main(["perf", *arguments, "-u", server.service_url])
    return code, capfd.readouterr().out


def document(out: str) -> dict[str, Any]:
    total: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert total["kind"] == "total"
    return total


def test_counts_of_all_commands_add_up(
    server: ServerProcess, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    flags: tuple[str, ...] = (
        "-m",
        str(COUNT),
        "-s",
        "100",
        "-r",
        "0",
        "--warmup-time",
        "0",
        "-np",
        "2",
        "--advise",
    )
    code, out = perf(server, capfd, "produce", topic, *flags, "-au", server.http_url)
    assert code == 0, out
    assert f"Aggregated throughput stats --- {COUNT} records sent --- " in out
    assert re.search(r"^Aggregated latency stats --- Latency: mean: +\d", out, re.MULTILINE)
    assert re.search(r"^Advice: ", out, re.MULTILINE)

    flags = ("-m", str(COUNT), "-sp", "Earliest", "-st", "Shared", "-n", "2", "--json")
    code, out = perf(server, capfd, "consume", topic, *flags)
    total = document(out)
    assert (code, total["messages"]) == (0, COUNT)
    assert total["latencyMs"]["max"] >= total["latencyMs"]["50"] > 0

    code, out = perf(server, capfd, "read", topic, "-n", str(COUNT))
    assert code == 0
    assert f"Aggregated throughput stats --- {COUNT} records received --- " in out

    flags = ("-ntxn", "20", "-threads", "2", "-nmc", "2", "-q", "5", "--json", "-ss", "txn")
    code, out = perf(
        server, capfd, "transaction", "--topics-c", topic, "--topics-p", f"{topic}-2", *flags
    )
    total = document(out)
    assert (code, total["ended"], total["acks"], total["sends"]) == (0, 20, 40, 20)

    code, out = perf(server, capfd, "read", f"{topic}-2", "-n", "20", "--json")
    assert (code, document(out)["messages"]) == (0, 20)


def test_advice_for_the_producers_of_a_topic(
    server: ServerProcess, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    url = ("-u", server.service_url)
    compressible = ("-m", "x" * 2000, "-n", "400")
    assert main(["produce", topic, *compressible, "--no-batching", "--name", "single", *url]) == 0
    sent = ("-m", str(COUNT), "-s", "100", "-r", "0", "-b", "20", "-pn", "batched", topic)
    code, out = perf(server, capfd, "produce", *sent)
    assert code == 0, out
    capfd.readouterr()
    assert main(["advise", topic, "--json", *url]) == 0
    batched, single = json.loads(capfd.readouterr().out)
    assert (single["producer"], single["entries"], single["messages"]) == ("single", 400, 400)
    assert (single["messagesPerEntry"], single["bytesPerMessage"]) == (1, 2000)
    advice = {item["setting"]: item for item in single["advice"]}
    assert "zlib would leave" in advice["compression"]["reason"]
    assert (batched["producer"], batched["messages"]) == ("batched", COUNT)
    assert batched["messagesPerEntry"] > 1
    assert main(["advise", topic, *url]) == 0
    assert "producer single" in capfd.readouterr().out


def test_a_terminal_shows_a_live_line_and_ctrl_c_the_totals(
    server: ServerProcess, topic: str
) -> None:
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "magnetar.cli.main", "perf", "produce", topic]
    environment = os.environ | {"COLUMNS": "100"}
    process = subprocess.Popen(
        [*command, "-r", "500", "-time", "100", "-u", server.service_url],
        stdout=subprocess.PIPE, stderr=inside, env=environment, text=True,
    )  # fmt: skip
    os.close(inside)
    shown = ""
    try:
        while not re.search(r"░ +\d+% .*[▁▂▃▄▅▆▇█] \d+ msg \d+ msg/s med", shown):
            shown += os.read(terminal, 4096).decode(errors="replace")
        assert max(map(len, re.split(r"\r\x1b\[K|\r\n", shown))) < 100
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert process.returncode == 0
    found = re.search(r"Aggregated throughput stats --- (\d+) records sent", out)
    assert found is not None
    assert int(found[1]) > 0
