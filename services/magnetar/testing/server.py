"""The server of a test run: started by the first process that needs it, and shared by all.

The processes of pytest-xdist meet in one folder. Who starts the server holds a lock there; users
hold another, until they end (`magnetar.testing.guard`).
"""

import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.testing.guard import DATA, STATE, USERS

START_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.02
HTTP_TIMEOUT_S: Final = 30.0
LOG_TAIL_CHARS: Final = 4000
STARTING: Final = "starting"
LOG: Final = "server.log"
READY: Final = "standalone.json"
CONFLICT: Final = 409
_NEEDED: Final = ("fastapi", "rocksdict", "uvicorn", "uvloop")
"""Modules of the extra `broker` that the client does not need."""


class ServerFailed(Exception):
    """The server for the tests cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class MagnetarServer:
    """A running standalone."""

    service_url: str
    """For clients: `pulsar://127.0.0.1:PORT`."""
    http_url: str
    """The admin REST: `http://127.0.0.1:PORT`."""

    def put(self, path: str, body: object = None) -> None:
        """Sends a PUT to the admin REST, such as `/admin/v2/namespaces/TENANT/NAMESPACE`.

        What exists already is no error. Raises ServerFailed.
        """
        request = urllib.request.Request(  # noqa: S310  # our own server
            self.http_url + path,
            data=json.dumps(body).encode() if body is not None else b"",
            headers={"Content-Type": "application/json"},
            method="PUT",
        )
        # No proxy of the environment: the server is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(request, timeout=HTTP_TIMEOUT_S).close()
        except urllib.error.HTTPError as error:
            if error.code != CONFLICT:
                raise ServerFailed(f"PUT {path}: {error.code} {error.read().decode()}") from error
        except OSError as error:
            raise ServerFailed(f"PUT {path}: the server does not answer: {error}") from error


@contextmanager
def shared_server(root: Path, environment: Mapping[str, str]) -> Iterator[MagnetarServer]:
    """Starts the server of a folder, or joins it; it stops when its last user ends.

    `environment` configures it; that of the process that starts it counts. Raises ServerFailed.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ServerFailed(
            f"magnetar_server needs a server, whose packages are not installed ({missing[0]} is "
            "missing): pip install 'magnetar[broker]'"
        )
    root.mkdir(parents=True, exist_ok=True)
    with (root / USERS).open("a") as users:
        with (root / STARTING).open("a") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            state = root / STATE
            if not state.exists():
                state.write_text(json.dumps(_start(root, environment)))
            urls = json.loads(state.read_text())
        yield MagnetarServer(urls["service_url"], urls["http_url"])


def _start(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Starts a guard with its server; returns the server's URLs once it is ready."""
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith("MAGNETAR_")
    }
    (root / DATA / READY).unlink(missing_ok=True)
    with (root / LOG).open("ab") as log:
        guard = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "magnetar.testing.guard", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**inherited, **environment},
            start_new_session=True,  # Ctrl-C ends the tests first
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and guard.poll() is None:
        try:
            ready = json.loads((root / DATA / READY).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(POLL_S)
            continue
        return {"service_url": ready["service_url"], "http_url": ready["http_url"]}
    tail = (root / LOG).read_text(errors="replace")[-LOG_TAIL_CHARS:]
    what = "is not ready" if guard.poll() is None else f"has ended with code {guard.returncode}"
    if guard.poll() is None:
        os.killpg(guard.pid, signal.SIGKILL)  # the guard alone would leave its server
        guard.wait()
    raise ServerFailed(f"The server {what} after {START_TIMEOUT_S:g} s at most. Its log:\n{tail}")
