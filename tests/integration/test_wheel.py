"""The wheel as a user installs it: built from the repository, with all extras, and run."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.support.server_process import ServerProcess

REPOSITORY = Path(__file__).parents[2]
BUILD_S_MAX = 240.0

ONE_MESSAGE = """
import sys, pulsar
client = pulsar.Client(sys.argv[1])
consumer = client.subscribe("wheel", "s")
client.create_producer("wheel").send(b"from a wheel")
print(consumer.receive(20_000).data().decode())
client.close()
"""


class InstalledServer(ServerProcess):
    """A standalone of another Python environment than the tests'."""

    def __init__(self, root: Path, magnetar: Path, environment: dict[str, str]) -> None:
        super().__init__(root, environment=environment)
        self.magnetar = magnetar

    def command(self) -> list[str]:
        return [str(self.magnetar), *super().command()[3:]]


def uv(*words: str) -> None:
    """Runs uv from PATH, or the one that `make setup` installed beside Python."""
    program = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    done = subprocess.run(
        [program, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=BUILD_S_MAX
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(300)
def test_a_wheel_in_an_empty_environment_runs_a_standalone(tmp_path: Path) -> None:
    versions, environment = tmp_path / "versions.txt", tmp_path / "environment"
    uv("build", "--quiet", "--wheel", "--out-dir", str(tmp_path))
    (wheel,) = tmp_path.glob("*.whl")
    # The versions of uv.lock, which uv has cached since `make setup`.
    uv(
        *("export", "--quiet", "--frozen", "--no-dev", "--no-hashes", "--no-emit-project"),
        *("--extra", "all", "--output-file", str(versions)),
    )
    uv("venv", "--quiet", "--python", sys.executable, str(environment))
    python = environment / "bin" / "python"
    uv(
        *("pip", "install", "--quiet", "--python", str(python)),
        *("--constraints", str(versions), f"magnetar[all] @ {wheel.as_uri()}"),
    )
    clean = {"PYTHONPATH": "", "VIRTUAL_ENV": "", "PATH": os.defpath}
    with InstalledServer(tmp_path, environment / "bin" / "magnetar", clean) as server:
        with urllib.request.urlopen(f"{server.http_url}/admin/v2/namespaces/public") as answer:  # noqa: S310
            assert "public/default" in json.load(answer)
        done = subprocess.run(
            [str(python), "-c", ONE_MESSAGE, server.service_url],
            cwd=tmp_path,
            env={**os.environ, **clean},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "from a wheel" in done.stdout, done.stderr
        assert server.terminate() == 0
