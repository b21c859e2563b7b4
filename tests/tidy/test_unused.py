"""Product code that only tests use: definitions that are never named, modules never imported.

Names are counted by text: a name that occurs once in all product code occurs only where it is
defined. That misses dead code whose name is used elsewhere, and reports nothing that is alive,
except what a framework calls by name: functions with a decorator, and methods of a class with a
foreign base class.
"""

import ast
import builtins
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .test_tidy import ROOT, shown, tree_of

PRODUCT_ROOTS = ("services", "operator", "spark-jobs", "charts")
CALLERS = ("pyproject.toml", "Makefile", ".ci/run", "images", "charts", "crds", "operator")
"""Where commands outside Python code name modules and functions."""

HARMLESS_DECORATORS = {
    "abstractmethod", "asynccontextmanager", "cache", "cached_property", "classmethod",
    "contextmanager", "dataclass", "final", "lru_cache", "override", "property",
    "runtime_checkable",
    "staticmethod",
}  # fmt: skip
"""Decorators that register nothing."""

DECLARED_BY_PULSAR = {"magnetar/core/errors.py"}
"""Pulsar's whole list of errors, with their codes."""

CLIENT_SIDE = {"encode_send", "java_string_hash", "boost_hash"}
"""The client's half of the protocol, for the clients of tests, benchmarks and the simulation."""

CLIENT_API = (
    "client/auth/", "client/client.py", "client/consumer/consumer.py", "client/consumer/reader.py",
    "client/consumer/stats.py", "client/consumer/table_view.py", "client/crypto/api.py",
    "client/errors.py",
    "client/interceptors.py", "client/message.py", "client/message_id.py", "client/opening.py",
    "client/options.py", "client/producer/producer.py", "client/producer/stats.py",
    "client/schema/", "client/sync/", "client/tracing.py", "client/transaction/transaction.py",
    "pulsar/",
    "testing/plugin.py",
)  # fmt: skip
"""The library's public interface, which programs of users call."""

PROTOCOL_CALLBACKS = {
    "connection_made", "connection_lost", "eof_received", "pause_writing", "resume_writing",
    "get_buffer", "buffer_updated",
}  # fmt: skip
"""Methods that asyncio calls."""

CALLED_BY_NAME = {"pushFilters", "main_loop", "_generate_next_value_"}
"""Methods that Spark, uvicorn and enum call."""

RUN_BY_SPARK = {"spark-jobs/magnetar_spark/jobs/submit.py"}
"""The script for spark-submit."""

IMPORTED_BY_USERS = {"services/magnetar/pulsar/asyncio.py"}
"""Modules of the library that programs of users import."""

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def product() -> Iterator[Path]:
    for root in PRODUCT_ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            if "_pb" not in path.parts and "__pycache__" not in path.parts:
                yield path


@cache
def occurrences() -> Counter[str]:
    """How often each name occurs in product code, docstrings and comments left out."""
    counted: Counter[str] = Counter()
    for path in product():
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.NAME:
                counted[token.string] += 1
            elif token.type == tokenize.STRING and not token.string.startswith('"""'):
                counted.update(re.findall(r"[A-Za-z_]\w+", token.string))
    return counted


@cache
def commands() -> str:
    """The text of all files that run product code."""
    files = [ROOT / name for name in CALLERS]
    texts = [path.read_text() for path in files if path.is_file()]
    for folder in files:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.suffix in {".yaml", ".tpl", ".sh", ".toml"} or path.name == "Dockerfile":
                texts.append(path.read_text())
    return "\n".join(texts)


def own_classes() -> set[str]:
    return {
        node.name
        for path in product()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    }


def name_of(node: ast.expr) -> str:
    """The last name of a decorator or base class: `x.y[z](...)` is `y`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_registered(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(name_of(each) not in HARMLESS_DECORATORS for each in decorators)


def definitions(path: Path, own: set[str]) -> Iterator[tuple[int, str]]:
    """The line and name of each module-level definition, and of each method."""
    for node in tree_of(path).body:
        if isinstance(node, FUNCTIONS | ast.ClassDef) and not is_registered(node):
            yield node.lineno, node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id
        elif isinstance(node, ast.Assign):
            yield from ((node.lineno, t.id) for t in node.targets if isinstance(t, ast.Name))
        if isinstance(node, ast.ClassDef) and all(
            name_of(base) in own or name_of(base) in dir(builtins) or name_of(base) in BASES
            for base in node.bases
        ):
            for member in node.body:
                if isinstance(member, FUNCTIONS) and not is_registered(member):
                    yield member.lineno, member.name


BASES = {"Protocol", "Generic", "ABC", "Struct", "NamedTuple", "Enum", "IntEnum", "StrEnum"}
"""Base classes of others that call no method by its name."""


def test_every_definition_is_used_by_the_product() -> None:
    own = own_classes()
    unused = [
        f"{shown(path, line)} {name}"
        for path in product()
        if not any(str(path).endswith(listed) for listed in DECLARED_BY_PULSAR)
        and not any(f"magnetar/{listed}" in str(path) for listed in CLIENT_API)
        for line, name in definitions(path, own)
        if not name.startswith("__")
        and name not in CLIENT_SIDE | CALLED_BY_NAME | PROTOCOL_CALLBACKS
        and occurrences()[name] <= 1
        and not re.search(rf"\b{name}\b", commands())
    ]
    assert not unused


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, also inside functions and for types only."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_is_imported_or_run() -> None:
    imported = {name for path in product() for name in imports(path)}
    unused = [
        shown(path)
        for path in product()
        if path.name not in {"__init__.py", "__main__.py"}
        and module_of(path) not in imported
        and not re.search(rf"(?<![\w.]){re.escape(module_of(path))}(?![\w.])", commands())
        and path.name not in commands()
        and str(path.relative_to(ROOT)) not in RUN_BY_SPARK | IMPORTED_BY_USERS
        and not re.search(rf'"{re.escape(module_of(path))}"', _strings())
    ]
    assert not unused


@cache
def _strings() -> str:
    """All product code: a module may be imported by the name in a string."""
    return "\n".join(path.read_text() for path in product())
