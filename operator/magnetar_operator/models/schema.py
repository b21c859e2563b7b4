"""Generates structural OpenAPI v3 schemas for CustomResourceDefinitions from the typed models.

`of_model` walks a struct by `msgspec.inspect`; `of_policies` builds `spec.policies` of a level from
the registry. Pure: no IO. Each field has a description, which names the default unless the API
server stores it. Every list, map and text has an upper bound, which determines the cost of rules.
"""

from typing import Any, Final

from msgspec import NODEFAULT, to_builtins
from msgspec import inspect as shapes

from magnetar.policies.policy import Level
from magnetar_operator.models.base import (
    ITEMS_MAX,
    LIST_KEYS,
    SERVER_DEFAULT,
    TEXT_CHARACTERS_MAX,
    Cel,
    Model,
)
from magnetar_operator.models.policy_schema import of_policies
from magnetar_operator.models.resources import POLICIES_LEVEL

Schema = dict[str, Any]

PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING: Final[Schema] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}


class NotStructural(TypeError):
    """A model has a type that a CRD cannot express."""


def of_model(model: type[Model], description: str = "") -> Schema:
    """The schema of the whole struct."""
    shape = shapes.type_info(model)
    if not isinstance(shape, shapes.StructType):
        raise NotStructural(f"{model.__name__} is no struct")
    return {"description": description or _first_line(model), **_struct(shape)}


def rules_of(rules: tuple[Cel, ...]) -> list[Schema]:
    """Rules in the form of `x-kubernetes-validations`."""
    built = []
    for cel in rules:
        rule: Schema = {"rule": cel.rule, "message": cel.message}
        if cel.field_path:
            rule["fieldPath"] = cel.field_path
        built.append(rule)
    return built


def _first_line(model: type) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _struct(shape: shapes.StructType) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {field.encode_name: _field(field) for field in shape.fields},
    }
    required = sorted(field.encode_name for field in shape.fields if field.required)
    if required:
        schema["required"] = required
    rules = rules_of(getattr(shape.cls, "rules", ()))
    if rules:
        schema["x-kubernetes-validations"] = rules
    return schema


def default_of(field: shapes.Field) -> Any:
    """The default as JSON; `NODEFAULT` if the field is required."""
    if field.default is not NODEFAULT:
        return to_builtins(field.default)
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return NODEFAULT


def _field(field: shapes.Field) -> Schema:
    shape, extra, documented = field.type, {}, {}
    if isinstance(shape, shapes.Metadata):
        extra, documented = shape.extra or {}, shape.extra_json_schema or {}
        shape = shape.type
    level = extra.get(POLICIES_LEVEL)
    schema = of_policies(Level(level)) if level else _type(shape)
    text = documented.get("description", "")
    if not text:
        raise NotStructural(f"{field.name} has no description")
    if schema.get("x-kubernetes-int-or-string") and "form" in extra:
        text = f"{extra['form']} {text}"
    default = default_of(field)
    if extra.get(SERVER_DEFAULT):
        schema["default"] = _stored(schema) if schema["type"] == "object" else default
    elif default not in (NODEFAULT, None, "", [], {}) and "Default:" not in text:
        text = f"{text} Default: {str(default).lower() if default in (True, False) else default}."
    if "examples" in documented:
        schema["example"] = documented["examples"][0]
    if keys := extra.get(LIST_KEYS):
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    return {"description": text, **schema}


def _stored(schema: Schema) -> Schema:
    """The default of an object, with the defaults of its fields, which rules refer to."""
    return {
        name: field["default"] for name, field in schema["properties"].items() if "default" in field
    }


def _type(shape: shapes.Type) -> Schema:
    match shape:
        case shapes.Metadata():
            return _type(shape.type)
        case shapes.StructType():
            return _struct(shape)
        case shapes.BoolType():
            return {"type": "boolean"}
        case shapes.IntType():
            return {"type": "integer", "format": "int64", **_range(shape)}
        case shapes.StrType():
            return {"type": "string", **_text(shape)}
        case shapes.LiteralType():
            kind = "integer" if isinstance(shape.values[0], int) else "string"
            return {"type": kind, "enum": sorted(shape.values)}
        case shapes.ListType():
            item = _bare(shape.item_type)
            return {"type": "array", "items": item, **_list(shape, item)}
        case shapes.DictType():
            return _map(shape)
        case shapes.UnionType():
            return _union(shape)
    raise NotStructural(f"{shape} has no schema")


def _bare(shape: shapes.Type) -> Schema:
    """The schema of items and values; the description is at their container."""
    if isinstance(shape, shapes.Metadata):
        return _bare(shape.type)
    schema = _type(shape)
    if isinstance(shape, shapes.StructType):
        return {"description": _first_line(shape.cls), **schema}
    if schema.get(PRESERVE):
        return {"description": "As Kubernetes has it.", **schema}
    return schema


def _range(shape: shapes.IntType) -> Schema:
    ends = {"minimum": shape.ge, "maximum": shape.le}
    return {name: end for name, end in ends.items() if end is not None}


def _text(shape: shapes.StrType) -> Schema:
    schema: Schema = {"maxLength": shape.max_length or TEXT_CHARACTERS_MAX}
    if shape.pattern is not None:
        schema["pattern"] = shape.pattern
    if shape.min_length:
        schema["minLength"] = shape.min_length
    return schema


def _list(shape: shapes.ListType, item: Schema) -> Schema:
    schema: Schema = {"maxItems": shape.max_length or ITEMS_MAX}
    if shape.min_length:
        schema["minItems"] = shape.min_length
    if item.get("type") == "string":
        schema["x-kubernetes-list-type"] = "set"
    elif item.get("type") == "object":
        schema["x-kubernetes-list-type"] = "atomic"
    return schema


def _map(shape: shapes.DictType) -> Schema:
    value = shape.value_type
    if isinstance(value, shapes.AnyType):
        return {"type": "object", PRESERVE: True}
    return {
        "type": "object",
        "additionalProperties": _bare(value),
        "maxProperties": shape.max_length or ITEMS_MAX,
    }


def _union(shape: shapes.UnionType) -> Schema:
    parts = [item for item in shape.types if not isinstance(item, shapes.NoneType)]
    if len(parts) == 1:
        return _type(parts[0])
    bare = [part.type if isinstance(part, shapes.Metadata) else part for part in parts]
    text = next((item for item in bare if isinstance(item, shapes.StrType)), None)
    number = next((item for item in bare if isinstance(item, shapes.IntType)), None)
    if len(bare) != 2 or text is None or number is None:
        raise NotStructural(f"a union of {parts}: a CRD knows only integer or string")
    return {**INT_OR_STRING, **_range(number), **_text(text)}
