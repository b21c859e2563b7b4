"""moto's S3 server as a process of its own, with one bucket: for tests of object stores."""

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.cluster_processes import wait_for
from tests.support.etcd import free_ports

from magnetar.offload.stores import StoreSpec

BUCKET: Final = "cold"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextlib.contextmanager
def running_s3(directory: Path) -> Iterator[StoreSpec]:
    """A bucket of a server that is up; credentials are in the environment meanwhile."""
    (port,) = free_ports(1)
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (directory / "s3.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: _made(endpoint, process), "moto's S3 server answers", START_TIMEOUT_S)
        yield StoreSpec("aws-s3", BUCKET, "us-east-1", endpoint)
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
        os.environ.clear()
        os.environ.update(before)


def _made(endpoint: str, process: "subprocess.Popen[bytes]") -> bool:
    """Whether the bucket could be made."""
    assert process.poll() is None, "moto's server has ended: see s3.log"
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False
