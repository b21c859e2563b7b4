"""Runs a standalone for as long as any process of a test run uses it.

    python -m magnetar.testing.guard ROOT

Users hold a shared lock on `ROOT/users`. The guard waits for the exclusive lock, which it gets when
the last user has ended, in whatever way, even by SIGKILL: then it deletes `ROOT/state.json`, stops
the server, and releases the lock. A user that comes meanwhile waits, and starts another server:
two never share the data.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

STOP_TIMEOUT_S: Final = 20.0
"""For an orderly stop of the server; it is killed afterwards."""
USERS: Final = "users"
STATE: Final = "state.json"
DATA: Final = "data"


def main(root: Path) -> int:
    """Returns the exit code of the server."""
    command = [sys.executable, "-m", "magnetar.cli.main", "standalone"]
    options = ["--data-dir", str(root / DATA), "--port", "0", "--http-port", "0"]
    server = subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL)  # noqa: S603

    def end_with_server() -> None:
        code = server.wait()
        os._exit(code)  # the main thread waits for a lock that users may hold for long

    threading.Thread(target=end_with_server, daemon=True).start()
    with (root / USERS).open("a") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            (root / STATE).unlink()
        server.terminate()
        try:
            return server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            return server.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
