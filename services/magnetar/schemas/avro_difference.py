"""Names the field for which data of one Avro schema cannot be read with another."""

from magnetar.schemas.avro import can_read
from magnetar.schemas.avro_parse import AvroParseError, Field, NoDefault, Schema, parse_avro


def difference(writer: bytes, reader: bytes) -> str:
    """Returns why `reader` cannot read what `writer` wrote; empty if it can."""
    try:
        old, new = parse_avro(writer), parse_avro(reader)
        if can_read(old, new):
            return ""
        return _difference(old, new, new.name or new.type, set())
    except (AvroParseError, RecursionError) as error:
        return f"a definition is no Avro schema: {error}"


def _difference(writer: Schema, reader: Schema, path: str, seen: set[tuple[int, int]]) -> str:
    pair = (id(writer), id(reader))
    if pair in seen or can_read(writer, reader):
        return ""
    seen.add(pair)
    if writer.type == "union":
        for branch in writer.branches:
            if reason := _difference(branch, reader, path, seen):
                return reason
        return ""
    if reader.type == "union":
        alike = next((b for b in reader.branches if b.type == writer.type), None)
        if alike is not None and (reason := _difference(writer, alike, path, seen)):
            return reason
    elif writer.type == reader.type == "record":
        return _fields(writer, reader, path, seen)
    elif writer.type == reader.type and writer.type in ("array", "map"):
        return _difference(writer.element, reader.element, f"{path}[]", seen)
    return f"{path} is written as {_name(writer)}, and read as {_name(reader)}"


def _fields(writer: Schema, reader: Schema, path: str, seen: set[tuple[int, int]]) -> str:
    written = {field.name: field for field in writer.fields}
    for field in reader.fields:
        where = f"{path}.{field.name}"
        other = next(
            (written[name] for name in (field.name, *field.aliases) if name in written), None
        )
        if other is not None:
            if reason := _difference(other.schema, field.schema, where, seen):
                return reason
        elif not _has_default(field):
            return f"{where} is missing when it was not written, and has no default"
        elif not can_read(_without(writer), _with(reader, field)):
            return f"the default of {where} does not fit its type"
    return ""


def _has_default(field: Field) -> bool:
    return not isinstance(field.default, NoDefault)


def _without(record: Schema) -> Schema:
    return Schema("record", record.name, record.namespace)


def _with(record: Schema, field: Field) -> Schema:
    return Schema("record", record.name, record.namespace, fields=[field])


def _name(schema: Schema) -> str:
    if schema.type == "union":
        return " or ".join(_name(branch) for branch in schema.branches)
    return f"{schema.type} {schema.full_name}" if schema.full_name else schema.type
