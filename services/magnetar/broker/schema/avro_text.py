"""Renders an Avro schema as text, like Avro's Java library with indentation.

Pulsar's broker includes schemas in error texts in this form, so ours does, too: attributes in
Avro's order, a named type in full once and afterwards by name, `"a" : "b"` with spaces around the
colon, and arrays on one line except for objects in them.
"""

import json

from magnetar.schemas.avro_parse import PRIMITIVES, Field, Json, NoDefault, Schema


def avro_text(schema: Schema) -> str:
    """Returns the schema's text, indented."""
    return _render(_tree(schema, "", set()), 0)


def _tree(schema: Schema, namespace: str, named: set[str]) -> Json:
    match schema.type:
        case "union":
            return [_tree(branch, namespace, named) for branch in schema.branches]
        case "array" | "map":
            part = "items" if schema.type == "array" else "values"
            element = _tree(schema.element, namespace, named)
            return {"type": schema.type, part: element, **schema.properties}
        case kind if kind in PRIMITIVES:
            return {"type": kind, **schema.properties} if schema.properties else kind
    if schema.full_name in named:
        return schema.name if schema.namespace == namespace else schema.full_name
    named.add(schema.full_name)
    return _named(schema, namespace, named)


def _named(schema: Schema, namespace: str, named: set[str]) -> Json:
    tree: dict[str, Json] = {"type": "error" if schema.is_error else schema.type}
    tree["name"] = schema.name
    if schema.namespace != namespace:
        tree["namespace"] = schema.namespace
    if schema.doc is not None:
        tree["doc"] = schema.doc
    match schema.type:
        case "record":
            tree["fields"] = [_field(field, schema.namespace, named) for field in schema.fields]
        case "enum":
            tree["symbols"] = list(schema.symbols)
            if schema.enum_default is not None:
                tree["default"] = schema.enum_default
        case _:
            tree["size"] = schema.size
    tree.update(schema.properties)
    if schema.aliases:
        prefix = f"{schema.namespace}." if schema.namespace else ""
        tree["aliases"] = [
            alias.removeprefix(prefix) if "." not in alias.removeprefix(prefix) else alias
            for alias in schema.aliases
        ]
    return tree


def _field(field: Field, namespace: str, named: set[str]) -> Json:
    tree: dict[str, Json] = {
        "name": field.name,
        "type": _tree(field.schema, namespace, named),
    }
    if field.doc is not None:
        tree["doc"] = field.doc
    if not isinstance(field.default, NoDefault):
        tree["default"] = field.default
    if field.order != "ascending":
        tree["order"] = field.order
    if field.aliases:
        tree["aliases"] = list(field.aliases)
    tree.update(field.properties)
    return tree


def _render(value: Json, level: int) -> str:
    match value:
        case dict():
            if not value:
                return "{ }"
            inner = "  " * (level + 1)
            lines = [
                f"{inner}{json.dumps(key, ensure_ascii=False)} : {_render(item, level + 1)}"
                for key, item in value.items()
            ]
            return "{\n" + ",\n".join(lines) + "\n" + "  " * level + "}"
        case list():
            if not value:
                return "[ ]"
            return "[ " + ", ".join(_render(item, level) for item in value) + " ]"
    return json.dumps(value, ensure_ascii=False)
