"""Loads settings from flags, the environment, a file and the defaults, in order of precedence.

- Flags are parsed by the command line.
- The environment has `MAGNETAR_PORT` by our names, `PULSAR_PREFIX_brokerServicePort` by Pulsar's.
- The file has lines `key=value` as in Pulsar's broker.conf, or is TOML if its name ends in `.toml`;
  keys are ours or Pulsar's. As in Pulsar, an empty value means "not set", and "off" for a port.

A Pulsar key without effect here causes one warning. It causes an error if its value requires a
feature that Magnetar does not have, such as TLS (`pulsar_switches`), or names another metadata
store (`metadata_stores`). Settings of other roles are ignored with a note, so that all processes of
a cluster may share a file. An unknown key is an error, which names its origin and similar keys.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

from magnetar.settings import pulsar_switches
from magnetar.settings.convert import multiple, validate
from magnetar.settings.field import Setting, SettingsError, settings_of
from magnetar.settings.metadata_stores import METADATA_KEYS, STORE_KEYS, refuse_other_stores
from magnetar.settings.standalone import StandaloneSettings

S = TypeVar("S")

ENV_PREFIX: Final = "MAGNETAR_"
PULSAR_ENV_PREFIX: Final = "PULSAR_PREFIX_"
TEST_ENV_PREFIX: Final = "MAGNETAR_TEST_"
"""Variables of the test suite, which the servers that it starts inherit."""
NEAR_MATCHES_MAX: Final = 3
FILE_BYTES_MAX: Final = 1 << 20

# Kubernetes sets variables with the addresses of every Service in every pod. Those of a Service
# named "magnetar" have our prefix, and are ignored.
_SERVICE_LINK: Final = r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT_\d+_(TCP|UDP)(_|$)"
_SERVICE_URLS: Final = ("tcp://", "udp://")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """Loaded settings, with the origins of those that are set, warnings and notes."""

    settings: S
    origins: Mapping[str, str]
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Messages below a warning: settings of other roles."""


@dataclass(slots=True)
class Source:
    """The values of one source by setting, each with a text that names its origin."""

    values: dict[str, object] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    unsupported: list[str] = field(default_factory=list)
    other_roles: list[str] = field(default_factory=list)
    stores: dict[str, tuple[object, str]] = field(default_factory=dict)
    """The values of keys that name a metadata store, with their origins."""
    notices: dict[str, str] = field(default_factory=dict)
    """Warnings by key, for values that are accepted although a part of Pulsar is missing."""

    def add(self, name: str, value: object, origin: str) -> None:
        """Adds a value; raises SettingsError if another key of the source set a different one."""
        if name in self.values and self.values[name] != value:
            raise SettingsError(
                f"{self.origins[name]} and {origin} both set {name}, to different values"
            )
        self.values[name], self.origins[name] = value, origin


def load_standalone(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config: Path | None = None,
) -> Loaded[StandaloneSettings]:
    """Loads the standalone's settings. `flags` has only given flags, by setting name."""
    return load(StandaloneSettings, flags, environ, config)


def load(
    cls: type[S],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config: Path | None = None,
    others: Collection[Setting] = (),
) -> Loaded[S]:
    """Loads settings of `cls`; raises SettingsError. `others` are the settings of other roles."""
    sources = [_from_flags(flags)]
    declared = settings_of(cls)
    if config is not None or any(_is_setting(key) for key in environ):
        keys = _Keys(declared, others)
        sources.append(_from_environment(keys, environ))
        if config is not None:
            sources.append(_from_file(keys, config))
    origins: dict[str, str] = {}
    for source in sources:
        _refuse_unenforced(declared, source)
        origins = source.origins | origins
    settings = validate(cls, [source.values for source in sources], origins)
    _refuse_other_stores(settings, sources)
    unsupported = sorted({key for source in sources for key in source.unsupported})
    other_roles = sorted({key for source in sources for key in source.other_roles})
    return Loaded(
        settings,
        origins,
        (
            *_listed("keys of Pulsar's that have no effect here", unsupported),
            *{key: text for source in sources for key, text in source.notices.items()}.values(),
        ),
        _listed("settings of other roles, without effect here", other_roles),
    )


class _Keys:
    """Maps keys to settings of this role, and recognizes keys of other roles."""

    def __init__(self, settings: Mapping[str, Setting], others: Collection[Setting]) -> None:
        self.names: dict[str, str] = {name: name for name in settings}
        """Setting names by our keys and foreign keys."""
        self.can_be_off = {name for name, setting in settings.items() if setting.off}
        self.variables = {setting.env: setting.name for setting in settings.values()}
        for setting in settings.values():
            self.names |= dict.fromkeys(setting.foreign_keys, setting.name)
        self.multiples = {
            key: (setting.name, unit)
            for setting in settings.values()
            for key, unit in setting.multiples.items()
        }
        self.other_roles = {key for s in others for key in (s.name, s.env, *s.foreign_keys)}


def _from_flags(flags: Mapping[str, object]) -> Source:
    return Source(dict(flags), {name: "--" + name.replace("_", "-") for name in flags})


def _is_setting(variable: str) -> bool:
    prefixed = variable.startswith((ENV_PREFIX, PULSAR_ENV_PREFIX))
    return prefixed and not variable.startswith(TEST_ENV_PREFIX)


def _from_environment(keys: _Keys, environ: Mapping[str, str]) -> Source:
    source = Source()
    for variable in sorted(filter(_is_setting, environ)):
        value = environ[variable]
        if variable.startswith(PULSAR_ENV_PREFIX):
            key = variable.removeprefix(PULSAR_ENV_PREFIX)
            _take(source, keys, key, value, f"environment variable {variable}")
        elif variable in keys.variables:
            if value and not value.startswith(_SERVICE_URLS):
                source.add(keys.variables[variable], value, f"environment variable {variable}")
        elif variable in keys.other_roles:
            source.other_roles.append(variable)
        elif not (re.search(_SERVICE_LINK, variable) or value.startswith(_SERVICE_URLS)):
            near = suggestion(variable, keys.variables)
            raise SettingsError(f"unknown environment variable {variable}{near}")
    return source


def _from_file(keys: _Keys, path: Path) -> Source:
    source = Source()
    for key, (value, origin) in file_values(path).items():
        _take(source, keys, key, value, origin)
    return source


def file_values(path: Path) -> dict[str, tuple[object, str]]:
    """Reads the file: each key's value, and a text that names its origin.

    Raises SettingsError if the file cannot be read.
    """
    try:
        text = path.read_bytes()[: FILE_BYTES_MAX + 1].decode()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text: byte {error.start}") from error
    if len(text) > FILE_BYTES_MAX:
        raise SettingsError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    if path.suffix == ".toml":
        return {key: (value, f"{key} in {path}") for key, value in _toml(text, path).items()}
    return {
        key: (value, f"{key} in {path} line {number}")
        for key, (number, value) in _properties(text).items()
    }


def _refuse_unenforced(declared: Mapping[str, Setting], source: Source) -> None:
    """Raises SettingsError if a value requires a feature that Magnetar does not have yet."""
    for name, value in source.values.items():
        for key in declared[name].foreign_keys if name in declared else ():
            _refuse(key, value, source.origins[name])


def _refuse(key: str, value: object, origin: str) -> None:
    if (reason := pulsar_switches.refusal(key, value)) is not None:
        raise SettingsError(f"{origin}: {reason}")


def _refuse_other_stores(settings: object, sources: Iterable[Source]) -> None:
    """Raises SettingsError if a key names another metadata store than `metadata_url`."""
    named: dict[str, tuple[object, str]] = {}
    for source in sources:
        named = source.stores | named
    member = getattr(settings, "member", None)
    own = "in data_dir" if member is None else f"{member.metadata_url} (metadataStoreUrl)"
    stores = [named.pop(key)[0] for key in METADATA_KEYS if key in named]
    stores += [
        source.values["metadata_url"] for source in sources if "metadata_url" in source.values
    ]
    refuse_other_stores(named, stores if member is None else [*stores, member.metadata_url], own)


def _take(source: Source, keys: _Keys, key: str, value: object, origin: str) -> None:
    """Adds the value of `key`, ours or Pulsar's, to the source."""
    if key in keys.multiples:
        if value != "":
            name, unit = keys.multiples[key]
            number = multiple(value, unit, origin)
            if number is not None:
                source.add(name, number, origin)
        return
    if key in keys.names:
        if value != "" or keys.names[key] in keys.can_be_off:
            source.add(keys.names[key], value, origin)
        return
    if value != "":
        _refuse(key, value, origin)
        if key in STORE_KEYS or key in METADATA_KEYS:
            source.stores[key] = (value, origin)
    if key in keys.other_roles:
        source.other_roles.append(key)
        return
    all_keys = pulsar_keys()
    if key not in all_keys:
        near = suggestion(key, [*keys.names, *all_keys])
        raise SettingsError(f"unknown setting: {origin}{near}")
    if value == "":
        return
    if (text := pulsar_switches.notice(key, value)) is not None:
        source.notices[key] = f"{origin}: {text}"
        return
    source.unsupported.append(key)


def suggestion(key: str, candidates: Iterable[str]) -> str:
    """Returns `; did you mean …?` with similar candidates, or an empty text."""
    import difflib

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(key.lower(), by_lower, NEAR_MATCHES_MAX)
    return f"; did you mean {' or '.join(by_lower[lower] for lower in near)}?" if near else ""


def _toml(text: str, path: Path) -> dict[str, object]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def _properties(text: str) -> dict[str, tuple[int, str]]:
    """Parses the Java properties of broker.conf: `#` comments, `=` or `:`, `\\` continues a line.

    As in Java, the last value of a key counts. Each value has its line number.
    """
    properties: dict[str, tuple[int, str]] = {}
    pending, started = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        part = line.strip()
        if not pending and (not part or part[0] in "#!"):
            continue
        started = started if pending else number
        if part.endswith("\\"):
            pending += part[:-1]
            continue
        key, _, value = re.sub(r"\s*[=:]\s*", "=", pending + part, count=1).partition("=")
        pending = ""
        properties[key] = (started, value)
    return properties


def pulsar_keys() -> frozenset[str]:
    """Every key of broker.conf and bookkeeper.conf in Pulsar 4.0 and 4.2."""
    text = (Path(__file__).with_name("pulsar_keys.txt")).read_text()
    return frozenset(text.split())


def _listed(text: str, keys: list[str]) -> tuple[str, ...]:
    return (f"{text}: {', '.join(keys)}",) if keys else ()
