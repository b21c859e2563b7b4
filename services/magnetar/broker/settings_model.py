"""The settings as a pydantic-settings model: parses and checks what came as text.

The model is made from the dataclass, field by field, so there is one description of each setting.
The sources hand in values by setting name, first one wins; pydantic turns text into types and
reports everything that is wrong at once, which `validate` words with the place each came from.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from magnetar.broker.setting import Setting, SettingsError, settings_of

T = TypeVar("T")


class _Given(PydanticBaseSettingsSource):
    """Values that a source of ours has gathered."""

    def __init__(self, model: type[BaseSettings], values: Mapping[str, object]) -> None:
        super().__init__(model)
        self._values = dict(values)

    def get_field_value(self, _field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


def validate(
    cls: type[T], sources: Sequence[Mapping[str, object]], origins: Mapping[str, str]
) -> T:
    """An object of the dataclass `cls` from the sources, highest precedence first."""

    class Ordered(model_of(cls)):  # type: ignore[misc]
        """The model reading from these sources."""

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], **_: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_Given(settings_cls, values) for values in sources)

    try:
        model: BaseSettings = Ordered()
        return cls(**{name: getattr(model, name) for name in type(model).model_fields})
    except ValidationError as error:
        raise SettingsError(_worded(error, origins)) from error


@cache
def model_of(cls: type) -> type[BaseSettings]:
    """The pydantic-settings model of a settings dataclass."""
    types = get_type_hints(cls)
    made: dict[str, Any] = {
        name: (_annotation(setting, types[name]), _field(setting))
        for name, setting in settings_of(cls).items()
    }
    base = type("_Base", (BaseSettings,), {"model_config": SettingsConfigDict(extra="forbid")})
    return create_model(cls.__name__, __base__=base, __doc__=cls.__doc__, **made)


def _annotation(setting: Setting, annotation: Any) -> Any:
    """Lists come as comma-separated text, and Pulsar's spellings become ours."""
    if get_origin(annotation) is not tuple:
        return annotation

    def parse(value: object) -> object:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            return parts
        stripped = [part.strip() if isinstance(part, str) else part for part in parts]
        return tuple(setting.values.get(part, part) for part in stripped if part != "")

    return Annotated[annotation, BeforeValidator(parse)]


def _field(setting: Setting) -> Any:
    extra: dict[str, Any] = {"unit": setting.unit, "pulsar_key": setting.pulsar_key}
    return Field(
        default=setting.default,
        description=setting.help,
        ge=setting.low,
        le=setting.high,
        json_schema_extra=extra,
    )


def choices(annotation: object) -> tuple[str, ...]:
    """The values of a Literal, or of the Literal in a tuple."""
    if get_origin(annotation) is tuple:
        return choices(get_args(annotation)[0])
    return tuple(str(value) for value in get_args(annotation) if isinstance(value, str))


def _worded(error: ValidationError, origins: Mapping[str, str]) -> str:
    lines: list[str] = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        where = f" ({origins[name]})" if name in origins else ""
        text = problem["msg"][0].lower() + problem["msg"][1:]
        lines.append(f"{name} is {problem['input']!r}{where}: {text}")
    return "; ".join(lines)
