"""The committed protobuf classes are what `PulsarApi.proto` generates."""

import subprocess
import sys
from pathlib import Path

import magnetar.wire._pb as pb_package
from magnetar.wire._pb import PulsarApi_pb2 as pb

PB_DIRECTORY = Path(pb_package.__file__).parent
GENERATED = ("PulsarApi_pb2.py", "PulsarApi_pb2.pyi")


def generate(into: Path) -> None:
    command = [
        sys.executable, "-m", "grpc_tools.protoc",
        f"-I{PB_DIRECTORY}",
        f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
        f"--python_out={into}",
        f"--mypy_out=quiet:{into}",
        str(PB_DIRECTORY / "PulsarApi.proto"),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=50)


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    generate(tmp_path)
    for name in GENERATED:
        assert (PB_DIRECTORY / name).read_text() == (tmp_path / name).read_text(), (
            f"{name} is stale: run `make proto`"
        )


def test_every_command_type_has_its_field() -> None:
    """Type N of `BaseCommand` is described by the field with the number N, except CONNECT..PING."""
    fields = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}
    for name, number in pb.BaseCommand.Type.items():
        assert number in fields, name


def test_minus_one_survives_as_request_id() -> None:
    error = pb.CommandError(request_id=2**64 - 1, error=pb.AuthenticationError, message="no")
    assert pb.CommandError.FromString(error.SerializeToString()).request_id == 2**64 - 1
