"""A real `magnetar bookie` process whose data directory is on the lying disk."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from tests.disk.control import Control, build
from tests.disk.power_cut import Disk

from magnetar.bookie.api import BookieIdentity

BOOKIE_ID: Final = "lied-to"
START_TIMEOUT_S: Final = 60.0
HTTP_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.01
LOG_SHOWN_BYTES: Final = 3_000
SETTINGS: Final = """\
journal_file_mb = 1
write_cache_mb = 2
read_cache_mb = 0
entry_log_bytes = 1048576
disk_stall_ms = 1500
gc_interval_ms = 1000
gc_minor_interval_s = 1
gc_minor_live_ratio = 0.6
autorecovery = false
"""
"""As small as they go: files roll, flushes and collections run all the time."""


class NotStarted(Exception):
    """The process ended instead of becoming ready; the text is the end of its log."""


class BookieProcess:
    """One data directory, its disk, and one process at a time."""

    def __init__(self, root: Path, metadata_url: str, *, bug: str = "") -> None:
        self.root = root
        self.data_dir = root / "data"
        self.data_dir.mkdir(parents=True)
        self.log = root / "bookie.log"
        self.control = Control(root / "control")
        self.disk = Disk(self.data_dir)
        self.lives = 0
        self.identity = BookieIdentity(BOOKIE_ID, "")
        self.port = self.http_port = 0
        self._bug = bug
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._settings = root / "bookie.toml"
        metadata = f'metadata_url = "{metadata_url}"\nmetadata_root = "/disk{root.name}"\n'
        self._settings.write_text(metadata + SETTINGS)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Begins a life; returns when the bookie is ready. Raises NotStarted."""
        self.lives += 1
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._changes().unlink(missing_ok=True)
        self.control.restart()
        module = ("-m", "tests.disk.bugs", self._bug) if self._bug else ("-m", "magnetar.cli.main")
        command = [
            *(sys.executable, *module, "bookie", "--config", str(self._settings)),
            *("--data-dir", str(self.data_dir), "--bookie-id", BOOKIE_ID),
            *("--port", "0", "--http-port", "0", "--log-format", "json"),
        ]
        environment = os.environ | {
            "LD_PRELOAD": str(build()),
            "LYING_DISK_ROOT": str(self.data_dir),
            "LYING_DISK_CONTROL": str(self.control.path),
            "LYING_DISK_LOG": str(self._changes()),
            "UV_USE_IO_URING": "0",
        }
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        self._wait_until_ready()
        if not self.identity.incarnation:
            line = (self.data_dir / "identity").read_text().splitlines()[0]
            self.identity = BookieIdentity(BOOKIE_ID, json.loads(line)["incarnation"])

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            text = self.life_log()
            brokers = re.search(r"^ +brokers +127\.0\.0\.1:(\d+)$", text, re.MULTILINE)
            health = re.search(r"^ +health +http://127\.0\.0\.1:(\d+) ", text, re.MULTILINE)
            if brokers and health:
                self.port, self.http_port = int(brokers[1]), int(health[1])
                return
            if not self.alive:
                raise NotStarted(self.life_log()[-LOG_SHOWN_BYTES:])
            time.sleep(POLL_S)
        raise AssertionError(f"not ready within {START_TIMEOUT_S} s:\n{self.life_log()}")

    def life_log(self) -> str:
        """What this life printed."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", "replace")

    def readyz(self) -> tuple[int, str]:
        """The probe's status and text."""
        url = f"http://127.0.0.1:{self.http_port}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def kill(self) -> None:
        """SIGKILL, where the process still lives; the disk then knows all that it did."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.disk.follow(self._changes())

    def _changes(self) -> Path:
        return self.root / "changes"
