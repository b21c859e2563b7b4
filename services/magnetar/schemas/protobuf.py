"""PROTOBUF_NATIVE schemas: file descriptors in a JSON envelope, as Pulsar's clients create them.

    {"fileDescriptorSet": base64, "rootMessageTypeName": "pkg.Message",
     "rootFileDescriptorName": "path/file.proto"}

Two schemas are compatible if their root messages have the same full name. Protobuf's own rules keep
the data readable, and Pulsar's broker compares no more either.

The first such schema imports the descriptors of descriptors: they take 2 % of a start.
"""

import binascii
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final

import msgspec
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from magnetar.schemas.model import InvalidSchemaData

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

FILES_MAX: Final = 1_000

UNREADABLE: Final = "deserialize ProtobufNative Schema failed"
# Pulsar's own text, including its spaces.
NO_ROOT: Final = (
    "protobuf root message descriptor is null ,"
    " please recheck rootMessageTypeName or rootFileDescriptorName conf. "
)


class _Envelope(msgspec.Struct, rename="camel", frozen=True):
    file_descriptor_set: str
    root_message_type_name: str
    root_file_descriptor_name: str


def root_message(data: bytes) -> str:
    """Returns the full name of the root message; raises InvalidSchemaData."""
    return descriptor(data).full_name


def envelope_of(root: "Descriptor") -> bytes:
    """Returns the definition of a message type, as Java's client writes it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files = FileDescriptorSet()
    _add_file(root.file, files, set())
    return msgspec.json.encode(
        _Envelope(
            b64encode(files.SerializeToString(deterministic=True)).decode(),
            root.full_name,
            root.file.name,
        )
    )


def _add_file(file: "FileDescriptor", files: "FileDescriptorSet", added: set[str]) -> None:
    """Adds a file after its imports."""
    if file.name in added:
        return
    added.add(file.name)
    for dependency in file.dependencies:
        _add_file(dependency, files, added)
    file.CopyToProto(files.file.add())


def descriptor(data: bytes) -> "Descriptor":
    """Returns the root message's type, in a pool of its own; raises InvalidSchemaData."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        files = FileDescriptorSet.FromString(b64decode(envelope.file_descriptor_set))
    except (msgspec.MsgspecError, binascii.Error, DecodeError, UnicodeDecodeError) as error:
        raise InvalidSchemaData(UNREADABLE) from error
    by_name = {file.name: file for file in files.file}
    if len(by_name) > FILES_MAX or envelope.root_file_descriptor_name not in by_name:
        raise InvalidSchemaData(UNREADABLE)
    pool = DescriptorPool()
    for file in _dependencies_first(by_name, envelope.root_file_descriptor_name):
        try:
            pool.Add(file)
        except TypeError as error:
            raise InvalidSchemaData(UNREADABLE) from error
    package = by_name[envelope.root_file_descriptor_name].package
    local = envelope.root_message_type_name.removeprefix(f"{package}." if package else "")
    full_name = f"{package}.{local}" if package else local
    try:
        return pool.FindMessageTypeByName(full_name)
    except (KeyError, TypeError) as error:
        raise InvalidSchemaData(NO_ROOT) from error


def _dependencies_first(
    by_name: "dict[str, FileDescriptorProto]", root: str
) -> "list[FileDescriptorProto]":
    """Returns the root's file and all its imports, every file after its own imports."""
    ordered: list[FileDescriptorProto] = []
    state: dict[str, bool] = {}
    stack = [root]
    while stack:
        name = stack[-1]
        if (file := by_name.get(name)) is None:
            raise InvalidSchemaData(UNREADABLE)
        if name in state:
            stack.pop()
            if not state[name]:
                state[name] = True
                ordered.append(file)
            continue
        state[name] = False
        for dependency in file.dependency:
            if state.get(dependency) is False:
                raise InvalidSchemaData(UNREADABLE)
            if dependency not in state:
                stack.append(dependency)
    return ordered
