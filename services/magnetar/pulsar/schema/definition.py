"""Records and their fields, as the official client defines them.

    class Person(Record):
        name = String(required=True)
        age = Integer(default=0)

A class body lists the fields; an instance has a value for each, which is checked when it is set.
Definitions in Avro, defaults and conversions are those of the official client, so that a program
that changes its import keeps its schema: fields are nullable unless they are required, and a
default is only part of the definition with `required_default`.
"""

from abc import abstractmethod
from collections.abc import Collection
from copy import copy
from enum import Enum, EnumMeta
from typing import Any, ClassVar

STATE = ("_required_default", "_default", "_required")
"""Attributes of a record that describe it as a field of another."""


class Field:
    """One field of a record, or the type of the items of an array or map."""

    avro_type: ClassVar[str] = ""
    accepted: ClassVar[tuple[type, ...]] = ()
    """The Python types of its values."""

    def __init__(
        self, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        # A required field refuses None, also as its default.
        self._required = required
        self._required_default = required_default
        self._default: Any = None
        if default is not None:
            self._default = self.validate_type("default", default)

    def type(self) -> str:
        """The name of the type in Avro."""
        return self.avro_type

    def python_type(self) -> Any:
        """The Python type of values, or several in a tuple."""
        return self.accepted[0] if len(self.accepted) == 1 else self.accepted

    def validate_type(self, name: str, val: Any) -> Any:
        """Returns the value to store; raises TypeError."""
        if val is None and not self._required:
            return self.default()
        if not isinstance(val, self.python_type()):
            raise TypeError(
                f"Invalid type {_shown(type(val))} for field {name!r}. "
                f"Expected: {_shown(self.python_type())}"
            )
        return val

    def schema(self) -> Any:
        """The type in Avro's JSON."""
        return self.schema_info(set())

    def schema_info(self, defined_names: set[str]) -> Any:
        """The type in Avro's JSON; names that are in `defined_names` are not defined again."""
        return self.type()

    def default(self) -> Any:
        """The value of a field that is not given."""
        return self._default

    def required_default(self) -> bool:
        """Whether the definition has the default."""
        return self._required_default


class Null(Field):
    """Nothing."""

    avro_type = "null"
    accepted = (type(None),)

    def validate_type(self, name: str, val: Any) -> Any:
        if val is not None:
            raise TypeError(f"Field {name!r} is null: its only value is None")
        return val


class Boolean(Field):
    """True or False."""

    avro_type = "boolean"
    accepted = (bool,)

    def default(self) -> Any:
        return self._default if self._default is not None else False


class Integer(Field):
    """A number of 32 bits."""

    avro_type = "int"
    accepted = (int,)


class Long(Field):
    """A number of 64 bits."""

    avro_type = "long"
    accepted = (int,)


class Float(Field):
    """A number in single precision."""

    avro_type = "float"
    accepted = (float, int)


class Double(Field):
    """A number in double precision."""

    avro_type = "double"
    accepted = (float, int)


class Bytes(Field):
    """Bytes; text is encoded in UTF-8."""

    avro_type = "bytes"
    accepted = (bytes, str)

    def validate_type(self, name: str, val: Any) -> Any:
        return val.encode() if isinstance(val, str) else val


class String(Field):
    """Text; bytes are decoded from UTF-8."""

    avro_type = "string"
    accepted = (str, bytes)

    def validate_type(self, name: str, val: Any) -> Any:
        text = super().validate_type(name, val)
        return text.decode() if isinstance(text, bytes) else text


class CustomEnum(Field):
    """A member of an enumeration, which may be given by its name or number."""

    avro_type = "enum"

    def __init__(
        self,
        enum_type: type[Enum],
        default: Any = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        if not (isinstance(enum_type, type) and issubclass(enum_type, Enum)):
            raise TypeError(f"{_shown(enum_type)} is not an enumeration")
        self.enum_type = enum_type
        self.values = {member.value: member for member in enum_type.__members__.values()}
        super().__init__(default, required, required_default)

    def python_type(self) -> Any:
        return self.enum_type

    def validate_type(self, name: str, val: Any) -> Any:
        members = self.enum_type.__members__
        if val is None or isinstance(val, self.enum_type):
            return val
        if isinstance(val, str) and val in members:
            return members[val]
        if isinstance(val, int) and val in self.values:
            return self.values[val]
        raise TypeError(
            f"Invalid enum value {val!r} for field {name!r}. Expected: {', '.join(members)}"
        )

    def schema_info(self, defined_names: set[str]) -> Any:
        name = self.enum_type.__name__
        if name in defined_names:
            return name
        defined_names.add(name)
        symbols = [member.name for member in self.enum_type]
        return {"type": self.type(), "name": name, "symbols": symbols}


class _Items(Field):
    """An array or a map: its items have one type."""

    key: ClassVar[str] = ""
    """Avro's name of the type of items."""

    def __init__(self, item: Any, default: Any, required: bool, required_default: bool) -> None:
        if isinstance(item, type) and issubclass(item, Record):
            item = item()
        if not isinstance(item, Field | Record):
            raise TypeError(f"Argument {_shown(item)} is not a Record or a Field")
        self._item = item
        super().__init__(default, required, required_default)

    def validate_type(self, name: str, val: Any) -> Any:
        if val is None:
            return None
        super().validate_type(name, val)
        for member in self._each(name, val):
            if not isinstance(member, self._item.python_type()):
                raise TypeError(
                    f"Items of field {name!r} must all be of type "
                    f"{_shown(self._item.python_type())}, not {_shown(type(member))}"
                )
        return val

    @abstractmethod
    def _each(self, name: str, val: Any) -> Collection[Any]:
        """Returns the items of a value; raises TypeError."""

    def schema_info(self, defined_names: set[str]) -> Any:
        nested = isinstance(self._item, _Items | Record | CustomEnum)
        inner = self._item.schema_info(defined_names) if nested else self._item.type()
        return {"type": self.type(), self.key: inner}


class Array(_Items):
    """A list of items of one type."""

    avro_type = "array"
    accepted = (list,)
    key = "items"

    def __init__(
        self,
        array_type: Any,
        default: Any = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        super().__init__(array_type, default, required, required_default)

    @property
    def array_type(self) -> Any:
        """The type of items."""
        return self._item

    def _each(self, name: str, val: Any) -> Collection[Any]:
        items: list[Any] = val
        return items


class Map(_Items):
    """A dictionary from text to values of one type."""

    avro_type = "map"
    accepted = (dict,)
    key = "values"

    def __init__(
        self,
        value_type: Any,
        default: Any = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        super().__init__(value_type, default, required, required_default)

    @property
    def value_type(self) -> Any:
        """The type of values."""
        return self._item

    def _each(self, name: str, val: Any) -> Collection[Any]:
        entries: dict[Any, Any] = val
        for key in entries:
            if not isinstance(key, str):
                raise TypeError(f"Keys of map {name!r} must be text, not {_shown(type(key))}")
        return entries.values()


class RecordMeta(type):
    """Collects the fields of a record's class body."""

    def __new__(cls, name: str, parents: tuple[type, ...], members: dict[str, Any]) -> "RecordMeta":
        """Makes a class whose `_fields` are the fields of its body, in order."""
        fields: dict[str, Any] = {}
        for key, value in members.items():
            if isinstance(value, EnumMeta):
                fields[key] = CustomEnum(value)  # type: ignore[arg-type]  # it makes enumerations
            elif isinstance(value, RecordMeta):
                fields[key] = value()
            elif isinstance(value, Field) or isinstance(type(value), RecordMeta):
                fields[key] = value
        return super().__new__(cls, name, parents, {**members, "_fields": fields})


class Record(metaclass=RecordMeta):
    """Base of records; a record may also be a field of another."""

    _avro_namespace: ClassVar[str | None] = None
    """The namespace of the definition."""
    _sorted_fields: ClassVar[bool] = False
    """Whether the definition has the fields in the order of their names."""
    _fields: ClassVar[dict[str, Any]]
    _required: bool = False

    def __init__(
        self,
        default: Any = None,
        required_default: bool = False,
        required: bool = False,
        **kwargs: Any,
    ) -> None:
        """`kwargs` are values of fields; names that are no fields are those of later versions."""
        if type(self) is Record:
            raise TypeError("Record has no fields: use a subclass that has")
        for name, value in zip(STATE, (required_default, default, required), strict=True):
            object.__setattr__(self, name, value)
        for name, field in self._fields.items():
            if name in kwargs:
                setattr(self, name, _with_records(field, kwargs[name]))
            elif isinstance(field, Record):
                setattr(self, name, field)
            else:
                object.__setattr__(self, name, field.default())

    @classmethod
    def schema(cls) -> Any:
        """The definition in Avro's JSON."""
        return cls.schema_info(set())

    @classmethod
    def schema_info(cls, defined_names: set[str]) -> Any:
        """The definition in Avro's JSON, or only the name if it is in `defined_names`."""
        prefix = "" if cls._avro_namespace is None else f"{cls._avro_namespace}."
        full_name = prefix + cls.__name__
        if full_name in defined_names:
            return full_name
        defined_names.add(full_name)
        definition: dict[str, Any] = {"type": "record", "name": cls.__name__}
        if cls._avro_namespace is not None:
            definition["namespace"] = cls._avro_namespace
        names = sorted(cls._fields) if cls._sorted_fields else cls._fields
        definition["fields"] = [_defined(name, cls._fields[name], defined_names) for name in names]
        return definition

    def __setattr__(self, key: str, value: Any) -> None:
        if key in STATE:
            object.__setattr__(self, key, value)
            return
        if key not in self._fields:
            raise AttributeError(f"Cannot set undeclared field {key} on record")
        object.__setattr__(self, key, self._fields[key].validate_type(key, value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and all(
            getattr(self, name) == getattr(other, name, None) for name in self._fields
        )

    __hash__ = None  # type: ignore[assignment]  # records can be changed

    def __str__(self) -> str:
        return str(self.__dict__)

    def type(self) -> str:
        """The name of the record."""
        return type(self).__name__

    def python_type(self) -> Any:
        """The class of the record."""
        return type(self)

    def validate_type(self, name: str, val: Any) -> Any:
        """Returns the value to store in a field of this type; raises TypeError."""
        if val is None and not self._required:
            return self.default()
        if not isinstance(val, type(self)):
            raise TypeError(
                f"Invalid type {_shown(type(val))} for sub-record field {name!r}. "
                f"Expected: {_shown(type(self))}"
            )
        return val

    def default(self) -> Any:
        """The value of a field that is not given."""
        return self.__dict__["_default"]

    def required_default(self) -> bool:
        """Whether the definition of the record around it has the default."""
        return bool(self.__dict__["_required_default"])


def _defined(name: str, field: Any, defined_names: set[str]) -> dict[str, Any]:
    inner = field.schema_info(defined_names)
    kind = inner if field._required else ["null", inner]
    if not field.required_default():
        return {"name": name, "type": kind}
    default = field.default()
    return {
        "name": name,
        "default": default.name if isinstance(default, Enum) else default,
        "type": kind,
    }


def _with_records(field: Any, value: Any) -> Any:
    """Returns a value with records in the place of dictionaries, if the field has records."""
    if isinstance(field, Record):
        return _from(field, value)
    item = field._item if isinstance(field, _Items) else None
    if not isinstance(item, Record):
        return value
    if isinstance(value, list):
        return [_from(item, plain) for plain in value]
    if isinstance(value, dict):
        return {key: _from(item, plain) for key, plain in value.items()}
    return value


def _from(record: Record, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    instance = copy(record)
    type(record).__init__(instance, **value)
    return instance


def _shown(kind: Any) -> str:
    if isinstance(kind, tuple):
        return " or ".join(map(_shown, kind))
    return str(getattr(kind, "__name__", kind))
