"""The schema that `produce` declares: its flags, and how values become bytes.

Values of JSON and Avro schemas are JSON. Avro's fields of bytes have no form in JSON here.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.cli.messages.errors import UsageFailed

if TYPE_CHECKING:
    from magnetar.client.schema.api import Schema

KINDS: Final = ("bytes", "string", "json", "avro")
DEFINED: Final = frozenset({"json", "avro"})
"""Kinds that have a definition, in Avro's JSON."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the schema."""
    group = parser.add_argument_group("schema")
    group.add_argument(
        "-vs", "--value-schema", "--schema", dest="schema", type=_kind, default="bytes",
        metavar="KIND", help="bytes, string, json or avro; or as KIND:DEFINITION (bytes)",
    )  # fmt: skip
    group.add_argument(
        "--schema-file", metavar="FILE", help="the definition of json and avro, in Avro's JSON"
    )


def _kind(text: str) -> str:
    kind, separator, definition = text.partition(":")
    if kind not in KINDS or (separator and not (kind in DEFINED and definition)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not {', '.join(KINDS)}, json:DEFINITION or avro:DEFINITION"
        )
    return text


def schema_of(args: argparse.Namespace) -> "Schema[bytes]":
    """Returns the schema of the options; raises UsageFailed, SchemaFailed and MissingExtra."""
    from magnetar.client.schema.api import BYTES, RawSchema
    from magnetar.schemas.model import SchemaInfo, SchemaType

    kind, _, text = args.schema.partition(":")
    if args.schema_file and (kind not in DEFINED or text):
        raise UsageFailed("--schema-file is the definition of --schema json or --schema avro")
    if kind == "bytes":
        return BYTES
    if kind == "string":
        return RawSchema(SchemaInfo(SchemaType.STRING, name="String"))
    if not (args.schema_file or text):
        raise UsageFailed(f"--schema {kind} needs a definition: --schema-file FILE")
    definition = text.encode()
    if args.schema_file:
        try:
            definition = Path(args.schema_file).read_bytes()
        except OSError as error:
            raise UsageFailed(f"--schema-file: {error}") from None
    return _defined(kind, definition)


def _defined(kind: str, definition: bytes) -> "Schema[bytes]":
    import msgspec

    from magnetar.client.errors import SchemaFailed
    from magnetar.client.schema.api import RawSchema
    from magnetar.client.schema.avro import AvroCodec
    from magnetar.schemas.avro_parse import AvroParseError, parse_avro
    from magnetar.schemas.model import SchemaInfo, SchemaType

    try:
        parse_avro(definition)
        codec = AvroCodec(definition) if kind == "avro" else None
    except (AvroParseError, SchemaFailed) as error:
        raise UsageFailed(f"--schema {kind}: the definition is no Avro schema: {error}") from None

    class Defined(RawSchema):
        """Takes JSON, and declares the definition."""

        def encode(self, value: bytes) -> bytes:
            try:
                plain: Any = msgspec.json.decode(value)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise SchemaFailed(f"the value is not JSON: {error}") from None
            return value if codec is None else codec.encode(plain)

    kinds = {"json": SchemaType.JSON, "avro": SchemaType.AVRO}
    return Defined(SchemaInfo(kinds[kind], definition, name=kind.upper()))
