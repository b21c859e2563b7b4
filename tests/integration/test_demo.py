"""`magnetar demo` in a short form, as a person would start it: its promises hold, and it ends well.

That its checker finds what is wrong is tested in `tests/unit/cli/test_demo_checker.py`.
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
def test_nothing_is_lost_while_the_server_is_killed(tmp_path: Path, more: tuple[str, ...]) -> None:
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
