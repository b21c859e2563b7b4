"""The committed protobuf classes of etcd's API are what `magnetar_etcd.proto` generates."""

import subprocess
import sys
from pathlib import Path

import magnetar.metadata.etcd._pb as pb_package

PB_DIRECTORY = Path(pb_package.__file__).parent
GENERATED = ("magnetar_etcd_pb2.py", "magnetar_etcd_pb2.pyi")


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "grpc_tools.protoc",
        f"-I{PB_DIRECTORY}",
        f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
        f"--python_out={tmp_path}",
        f"--mypy_out=quiet:{tmp_path}",
        str(PB_DIRECTORY / "magnetar_etcd.proto"),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=50)
    for name in GENERATED:
        assert (PB_DIRECTORY / name).read_text() == (tmp_path / name).read_text(), (
            f"{name} is stale: run `make proto`"
        )
