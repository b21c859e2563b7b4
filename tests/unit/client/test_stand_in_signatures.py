"""Every class and method of the official client has the same parameters in the stand-in."""

import importlib
import inspect
from types import ModuleType
from typing import Any

import magnetar.pulsar as stand_in

MODULES = ("", ".asyncio", ".schema", ".tableview", ".exceptions")
MADE_BY_CLIENTS = {
    "Consumer", "EncryptionContext", "EncryptionKey", "Message", "Producer", "Reader", "Schema",
    "SchemaInfo", "TableView",
}  # fmt: skip
"""Classes whose constructors programs do not call."""
OTHERWISE = {
    "AutoClusterFailover.wrap": "takes an object of the C++ library",
    "ServiceInfo.wrap": "takes an object of the C++ library",
    "Record": "the official one ignores further positional arguments",
    "MessageId.wrap": "takes an object of the C++ library, or one of magnetar.client",
    "SchemaInfo.wrap": "takes an object of magnetar.client",
}


def owned_by(value: Any) -> bool:
    return getattr(value, "__module__", "").startswith(("pulsar", "_pulsar"))


def pairs() -> list[tuple[str, Any, Any]]:
    """The official functions and methods, and ours; ours is None where there is none."""
    found = []
    for suffix in MODULES:
        theirs = importlib.import_module(f"pulsar{suffix}")
        ours = importlib.import_module(f"magnetar.pulsar{suffix}")
        for name, value in vars(theirs).items():
            if name.startswith("_") or not owned_by(value) or is_left_out(ours, name):
                continue
            if inspect.isclass(value):
                found += members(f"{suffix}:{name}", value, getattr(ours, name))
            elif callable(value):
                found.append((f"{suffix}:{name}", value, getattr(ours, name)))
    return found


def is_left_out(ours: ModuleType, name: str) -> bool:
    return name in stand_in._LEFT_OUT or (name.endswith("Exception") and not hasattr(ours, name))


def members(path: str, theirs: Any, ours: Any) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    if theirs.__module__.startswith("_pulsar"):
        return found  # enumerations and exceptions, which have their own tests
    if theirs.__name__ not in MADE_BY_CLIENTS | OTHERWISE.keys():
        found.append((path, theirs, ours))
    for name, member in inspect.getmembers(theirs):
        named = f"{theirs.__name__}.{name}"
        if name.startswith("_") or named in OTHERWISE or hasattr(BaseException, name):
            continue
        if callable(member) or isinstance(member, property):
            found.append((f"{path}.{name}", member, getattr(ours, name, None)))
    return found


def parameters(function: Any) -> list[tuple[str, str, str]]:
    """Names, kinds and defaults; of schemas as defaults only the class."""
    shown = []
    for item in inspect.signature(function).parameters.values():
        default = "" if item.default is item.empty else str(item.default)
        shown.append((item.name, item.kind.name, default))
    return shown


def test_parameters_are_those_of_the_official_client() -> None:
    compared = pairs()
    names = {path for path, _, _ in compared}
    assert {":Client", ":Client.subscribe", ".asyncio:Client.subscribe", ":Producer.send"} <= names
    assert len(names) > 150
    assert [path for path, _, ours in compared if ours is None] == []
    functions = [item for item in compared if not isinstance(item[1], property)]
    assert {path: parameters(ours) for path, _, ours in functions} == {
        path: parameters(theirs) for path, theirs, _ in functions
    }
