"""What the pages say of the code is there: paths, links, names, bounds, tests and planted bugs."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.sim.bugs import all_bugs

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "services" / "README.md",
    ROOT / "tests" / "bench" / "README.md",
    ROOT / "tests" / "history" / "README.md",
    ROOT / "tests" / "sim" / "README.md",
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
)
ROOTS = {
    "services": ROOT,
    "tests": ROOT,
    "docs": ROOT,
    "operator": ROOT,
    "spark-jobs": ROOT,
    "magnetar": ROOT / "services",
    "broker": ROOT / "services" / "magnetar",
}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

NAME = re.compile(r"\[`([\w.]+)`\]\(([^)#\s]+\.py)\)")
PATH = re.compile(r"`([\w-]+(?:/[\w.-]+)+/?)`")
LINK = re.compile(r"\]\(((?!\w+:|#)[^)#\s]+)(?:#[^)]*)?\)")
TEST = re.compile(r"`(tests/[\w./-]+\.py)(?:::(\w+))?`")
PLANTED = re.compile(r"^Planted: ([^.]*)\.", re.MULTILINE)
METADATA_KEY = re.compile(r"^_?[A-Z_]*(?:PREFIX|KEY): Final = \"(/[a-z][a-z/-]*)", re.MULTILINE)
BOUND = re.compile(r"^\| \[[^]]+\]\(([^)]+)\) \| `([\w.]+)` \| ([\d.,]+) (\S+) \|", re.MULTILINE)


def shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def names_in(file: Path) -> frozenset[str]:
    """What a module defines, as `name` and `Class.name`."""
    return frozenset(_names(ast.parse(file.read_text()).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id
        elif isinstance(node, ast.Assign):
            yield from (prefix + each.id for each in node.targets if isinstance(each, ast.Name))


def test_names_lead_to_the_file_that_defines_them() -> None:
    wrong = []
    for page in PAGES:
        for name, target in NAME.findall(page.read_text()):
            file = page.parent / target
            if not file.exists() or name not in names_in(file):
                wrong.append(f"{shown(page)}: {name} is not in {target}")
    assert not wrong


def test_paths_in_pages_exist() -> None:
    wrong = []
    for page in PAGES:
        for path in PATH.findall(page.read_text()):
            root = ROOTS.get(path.partition("/")[0])
            if root is not None and not (root / path).exists():
                wrong.append(f"{shown(page)}: {path}")
    assert not wrong


def test_links_lead_somewhere() -> None:
    wrong = [
        f"{shown(page)}: {target}"
        for page in PAGES
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not wrong


def test_tests_that_pages_name_exist() -> None:
    wrong = []
    for page in PAGES:
        for path, name in TEST.findall(page.read_text()):
            file = ROOT / path
            if not file.exists() or (name and name not in names_in(file)):
                wrong.append(f"{shown(page)}: {path}::{name}")
    assert not wrong


def test_every_promise_names_tests_that_exist() -> None:
    """Each `###` section of the page of promises, up to what is not promised."""
    page = (ROOT / "docs" / "understand" / "guarantees.md").read_text()
    promises = page.partition("\n## What is not promised")[0].split("\n### ")[1:]
    assert len(promises) > 10
    without = []
    for promise in promises:
        if not any(name for _, name in TEST.findall(promise)):
            without.append(promise.partition("\n")[0])
    assert not without


def test_planted_bugs_that_pages_name_exist() -> None:
    page = (ROOT / "docs" / "understand" / "guarantees.md").read_text()
    named = [
        " ".join(name.split())
        for row in PLANTED.findall(page)
        for name in re.findall(r"\*([^*]+)\*", row)
    ]
    assert len(named) >= 10
    assert sorted(set(named) - all_bugs().keys()) == []


def _default(of: type, name: str) -> object:
    """What a dataclass has where nobody says otherwise."""
    return next((each.default for each in fields(of) if each.name == name), None)


def test_bounds_are_what_the_code_says() -> None:
    """Rows `| [where](file) | `NAME` | VALUE UNIT | …`; `Class.field` means its default."""
    rows = [(page, *row) for page in PAGES for row in BOUND.findall(page.read_text())]
    assert len(rows) > 10
    wrong = []
    for page, target, name, value, unit in rows:
        file = (page.parent / target).resolve().relative_to(ROOT).with_suffix("")
        # Below a source root: services, operator, spark-jobs.
        found: object = import_module(".".join(file.parts[1:]))
        for part in name.split("."):
            found = _default(found, part) if isinstance(found, type) else getattr(found, part, None)
        if found != float(value.replace(",", "")) * UNITS.get(unit, 1):
            wrong.append(f"{shown(page)}: {name} is {found}, not {value} {unit}")
    assert not wrong


def test_every_key_of_the_metadata_store_is_in_the_table_of_the_architecture() -> None:
    page = (ROOT / "docs" / "understand" / "architecture.md").read_text()
    start = page.index("## Metadata")
    table = page[start : page.index("## On disk", start)]
    keys = {
        (shown(file), key)
        for file in (ROOT / "services").rglob("*.py")
        for key in METADATA_KEY.findall(file.read_text())
    }
    assert len(keys) > 30
    assert not [(file, key) for file, key in sorted(keys) if f"`{key}" not in table]
