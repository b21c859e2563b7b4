"""Builds Protobuf schemas for tests: descriptors, their definitions, classes."""

import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from magnetar.wire._pb.PulsarApi_pb2 import Schema as Wire
from magnetar_spark.decode.protobuf_types import root_message
from magnetar_spark.log.schemas import Schema

F: Final = FieldDescriptorProto
COLOURS: Final[dict[int, str]] = {0: "NONE", 1: "RED", -7: "BLUE"}
"""The values of the enum `Colour`, which each file declares."""


@dataclass(frozen=True)
class Field:
    """`shape`: "" for plain, or optional, required, repeated, map, or the name of a oneof."""

    name: str
    number: int
    type: int
    shape: str = ""
    type_name: str = ""
    key_type: int = F.TYPE_STRING


def message(name: str, fields: Iterable[Field], *, proto3: bool = True) -> DescriptorProto:
    """Returns a message type. Synthetic oneofs are last, as Protobuf requires."""
    made = DescriptorProto(name=name)
    fields = list(fields)
    oneofs: list[str] = []
    for field in fields:
        if field.shape not in ("", "optional", "required", "repeated", "map", *oneofs):
            oneofs.append(field.shape)
    oneofs += [f"_{f.name}" for f in fields if proto3 and f.shape == "optional"]
    for each in oneofs:
        made.oneof_decl.add(name=each)
    for field in fields:
        labels = {"repeated": F.LABEL_REPEATED, "required": F.LABEL_REQUIRED}
        made_field = made.field.add(
            name=field.name,
            number=field.number,
            type=F.Type.ValueType(field.type),
            label=labels.get(field.shape, F.LABEL_OPTIONAL),
        )
        if field.type_name:
            made_field.type_name = field.type_name
        if field.shape == "map":
            entry = f"{field.name.title()}Entry"
            pair = (
                Field("key", 1, field.key_type),
                Field("value", 2, field.type, "", field.type_name),
            )
            nested = made.nested_type.add()
            nested.CopyFrom(message(entry, pair))
            nested.options.map_entry = True
            made_field.label = F.LABEL_REPEATED
            made_field.type = F.TYPE_MESSAGE
            made_field.type_name = entry
        elif proto3 and field.shape == "optional":
            made_field.proto3_optional = True
            made_field.oneof_index = oneofs.index(f"_{field.name}")
        elif field.shape in oneofs:
            made_field.oneof_index = oneofs.index(field.shape)
    return made


def native(
    *messages: DescriptorProto,
    imports: Iterable[Any] = (),
    proto3: bool = True,
    colours: dict[int, str] = COLOURS,
) -> Schema:
    """Returns the schema of the first message. `imports` are modules of well-known types."""
    file = FileDescriptorProto(name="t.proto", package="t", syntax="proto3" if proto3 else "proto2")
    file.message_type.extend(messages)
    enum = file.enum_type.add(name="Colour")
    for number, name in colours.items():
        enum.value.add(name=name, number=number)
    files = FileDescriptorSet(file=[file])
    for module in imports:
        file.dependency.append(module.DESCRIPTOR.name)
        module.DESCRIPTOR.CopyToProto(files.file.add())
    files.file[0].CopyFrom(file)
    definition = {
        "fileDescriptorSet": b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": f"t.{messages[0].name}",
        "rootFileDescriptorName": "t.proto",
    }
    # As the official client writes it, so that the uploaded schema is the one that it registers.
    return Schema(Wire.ProtobufNative, json.dumps(definition, indent=True).encode())


def class_of(schema: Schema) -> type[Message]:
    return GetMessageClass(root_message(schema.data))
