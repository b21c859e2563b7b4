"""The tasks of a server process: named, and none is left when it ends."""

import subprocess
import sys

import pytest

TIMEOUT_S = 30.0
PROGRAM = """
import asyncio, signal, sys
from magnetar.cli import run_loop

slow = sys.argv[1] == "slow"

def note():
    print(asyncio.current_task().get_name())

class Process:
    async def stop(self):
        note()

async def start():
    note()
    if slow:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
        await asyncio.Event().wait()
    return Process()

async def serving():
    code = await run_loop.serve(
        start, on_ready=lambda _: signal.raise_signal(signal.SIGTERM), shutdown_timeout_ms=10_000
    )
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return code

sys.exit(run_loop.run(serving()))
"""


@pytest.mark.parametrize(
    ("kind", "names"), [("quick", ["process/start", "process/drain"]), ("slow", ["process/start"])]
)
def test_a_signal_ends_the_process_and_all_its_tasks(kind: str, names: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == names
