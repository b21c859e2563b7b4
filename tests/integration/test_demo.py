"""`magnetar demo` in a short form: every check passes, and the exit code is 0.

`tests/unit/cli/test_demo_checker.py` tests that the checker reports violations.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FLIGHTS = 12_000
TIMEOUT_S = 110


@pytest.mark.timeout(120)
@pytest.mark.parametrize("more", [(), ("--no-batching",)], ids=["batched", "unbatched"])
def test_no_message_is_lost_when_the_server_is_killed(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "magnetar.cli.main", "demo", "--json", "--no-progress"]
    command += ["--limit", str(FLIGHTS), "--kills", "1", "--changes", "6", "--keep", str(tmp_path)]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stdout, done.stderr
    summary = json.loads(done.stdout)
    assert summary["ok"], (summary, done.stderr[-3000:])
    assert done.returncode == 0
    assert summary["receipted"] == summary["seen"] == FLIGHTS
    assert summary["server_kills"] == 1
    assert summary["consumers_joined"] > 3
