"""Where settings come from: flags, then the environment, then a file, then the defaults.

- Flags are what the command line parsed already.
- The environment: `MAGNETAR_PORT` by our names, `PULSAR_PREFIX_brokerServicePort` by Pulsar's.
- The file: lines `key=value` as in Pulsar's broker.conf, or TOML where its name ends in `.toml`;
  keys by our names or Pulsar's. An empty value means "not set", as it does in Pulsar.

A key that Pulsar has and Magnetar does not serve is warned of once, or refused if its value asks
for a promise that nothing keeps, such as TLS (`pulsar_switches`); a setting of another role is
passed over with a note, so that all processes of a cluster may share a file; one that nobody knows
is an error that names its source and what was likely meant.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

from magnetar.broker import pulsar_switches
from magnetar.broker.setting import Setting, SettingsError, settings_of
from magnetar.broker.settings import StandaloneSettings
from magnetar.broker.settings_values import validate

S = TypeVar("S")

ENV_PREFIX: Final = "MAGNETAR_"
PULSAR_ENV_PREFIX: Final = "PULSAR_PREFIX_"
TEST_ENV_PREFIX: Final = "MAGNETAR_TEST_"
"""Of the test-suite's own variables, which the servers it starts inherit."""
NEAR_MATCHES_MAX: Final = 3
FILE_BYTES_MAX: Final = 1 << 20

# Kubernetes puts the addresses of every Service into every pod: for one called "magnetar" these
# begin as our own variables do, and mean nothing to us.
_SERVICE_LINK: Final = r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT_\d+_(TCP|UDP)(_|$)"
_SERVICE_URLS: Final = ("tcp://", "udp://")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """Settings, where each that is not the default was set, and what the user should know."""

    settings: S
    origins: Mapping[str, str]
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What is worth a line, but no warning: settings of other roles."""


@dataclass(slots=True)
class Source:
    """What one source gives: values by setting name, each with the words that name its place."""

    values: dict[str, object] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    unsupported: list[str] = field(default_factory=list)
    of_others: list[str] = field(default_factory=list)

    def give(self, name: str, value: object, origin: str) -> None:
        """Takes one value; raises SettingsError where two keys of the source contradict."""
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
    """The standalone's settings. `flags` has only what was typed, by setting name."""
    return load(StandaloneSettings, flags, environ, config)


def load(
    cls: type[S],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config: Path | None = None,
    others: Collection[Setting] = (),
) -> Loaded[S]:
    """Settings of `cls`; raises SettingsError. `others` are those of other roles."""
    sources = [_from_flags(flags)]
    if config is not None or any(_is_ours(key) for key in environ):
        keys = _Keys(settings_of(cls), others)
        sources.append(_from_environment(keys, environ))
        if config is not None:
            sources.append(_from_file(keys, config))
    origins: dict[str, str] = {}
    for source in sources:
        origins = source.origins | origins
    settings = validate(cls, [source.values for source in sources], origins)
    unsupported = sorted({key for source in sources for key in source.unsupported})
    of_others = sorted({key for source in sources for key in source.of_others})
    return Loaded(
        settings,
        origins,
        _listed("keys of Pulsar's that have no effect here", unsupported),
        _listed("settings of other roles, without effect here", of_others),
    )


class _Keys:
    """What a key may mean: a setting of this role, one of another, or nothing."""

    def __init__(self, known: Mapping[str, Setting], others: Collection[Setting]) -> None:
        self.names: dict[str, str] = {name: name for name in known}
        """Names and foreign keys, each with the setting it sets."""
        self.variables = {setting.env: setting.name for setting in known.values()}
        for setting in known.values():
            self.names |= dict.fromkeys(setting.foreign_keys, setting.name)
        self.of_others = {key for s in others for key in (s.name, s.env, *s.foreign_keys)}


def _from_flags(flags: Mapping[str, object]) -> Source:
    return Source(dict(flags), {name: "--" + name.replace("_", "-") for name in flags})


def _is_ours(variable: str) -> bool:
    ours = variable.startswith((ENV_PREFIX, PULSAR_ENV_PREFIX))
    return ours and not variable.startswith(TEST_ENV_PREFIX)


def _from_environment(keys: _Keys, environ: Mapping[str, str]) -> Source:
    source = Source()
    for variable in sorted(filter(_is_ours, environ)):
        value = environ[variable]
        if variable.startswith(PULSAR_ENV_PREFIX):
            key = variable.removeprefix(PULSAR_ENV_PREFIX)
            _take(source, keys, key, value, f"environment variable {variable}")
        elif variable in keys.variables:
            if value and not value.startswith(_SERVICE_URLS):
                source.give(keys.variables[variable], value, f"environment variable {variable}")
        elif variable in keys.of_others:
            source.of_others.append(variable)
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
    """What the file sets: each key's value, and the words that name its place.

    Raises SettingsError where the file cannot be read.
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


def _take(source: Source, keys: _Keys, key: str, value: object, origin: str) -> None:
    """Gives the value of `key`, ours or Pulsar's, to the setting it belongs to."""
    if key in keys.names:
        if value != "":
            source.give(keys.names[key], value, origin)
        return
    if key in keys.of_others:
        source.of_others.append(key)
        return
    all_keys = pulsar_keys()
    if key not in all_keys:
        near = suggestion(key, [*keys.names, *all_keys])
        raise SettingsError(f"unknown setting: {origin}{near}")
    if value != "":
        if (reason := pulsar_switches.refusal(key, value)) is not None:
            raise SettingsError(f"{origin}: {reason}")
        source.unsupported.append(key)


def suggestion(key: str, candidates: Iterable[str]) -> str:
    """`; did you mean …?`, or nothing."""
    import difflib

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(key.lower(), by_lower, NEAR_MATCHES_MAX)
    return f"; did you mean {' or '.join(by_lower[lower] for lower in found)}?" if found else ""


def _toml(text: str, path: Path) -> dict[str, object]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def _properties(text: str) -> dict[str, tuple[int, str]]:
    """Java's properties as broker.conf uses them: `#` comments, `=` or `:`, `\\` continues.

    Each key's last value, as in Java, with the number of its line.
    """
    found: dict[str, tuple[int, str]] = {}
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
        found[key] = (started, value)
    return found


def pulsar_keys() -> frozenset[str]:
    """Every key of broker.conf and bookkeeper.conf in Pulsar 4.0 and 4.2."""
    text = (Path(__file__).with_name("pulsar_keys.txt")).read_text()
    return frozenset(text.split())


def _listed(what: str, keys: list[str]) -> tuple[str, ...]:
    return (f"{what}: {', '.join(keys)}",) if keys else ()
