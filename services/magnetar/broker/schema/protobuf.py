"""PROTOBUF_NATIVE schemas: file descriptors in a JSON envelope, as Pulsar's clients make them.

    {"fileDescriptorSet": base64, "rootMessageTypeName": "pkg.Message",
     "rootFileDescriptorName": "path/file.proto"}

Two of them fit when their root messages have the same full name: Protobuf's own rules keep the
rest readable, and Pulsar's broker compares no more either.
"""

import binascii
from base64 import b64decode
from typing import Final

import msgspec
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from magnetar.broker.schema.model import InvalidSchemaData

FILES_MAX: Final = 1_000

UNREADABLE: Final = "deserialize ProtobufNative Schema failed"
# Pulsar's own text, its spaces included.
NO_ROOT: Final = (
    "protobuf root message descriptor is null ,"
    " please recheck rootMessageTypeName or rootFileDescriptorName conf. "
)


class _Envelope(msgspec.Struct, rename="camel", frozen=True):
    file_descriptor_set: str
    root_message_type_name: str
    root_file_descriptor_name: str


def root_message(data: bytes) -> str:
    """The full name of the root message; raises InvalidSchemaData."""
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
        pool.FindMessageTypeByName(full_name)
    except (KeyError, TypeError) as error:
        raise InvalidSchemaData(NO_ROOT) from error
    return full_name


def _dependencies_first(
    by_name: dict[str, FileDescriptorProto], root: str
) -> list[FileDescriptorProto]:
    """The root's file and all that it imports, each after what it imports."""
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
        for needed in file.dependency:
            if state.get(needed) is False:
                raise InvalidSchemaData(UNREADABLE)
            if needed not in state:
                stack.append(needed)
    return ordered
