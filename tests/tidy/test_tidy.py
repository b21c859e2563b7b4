"""The house's own rules, kept by a machine: sizes, docstrings, leftovers, generated pages, layers.

Each test lists every offender, so that one run shows all there is to put right.
"""

import ast
import gc
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.interop.admin_table import table as admin_table

from magnetar import __version__
from magnetar.cli.authorization_page import authorization_page
from magnetar.cli.config import markdown
from magnetar.cli.policies_page import policies_page

ROOT = Path(__file__).resolve().parents[2]
CODE_ROOTS = ("services", "operator", "spark-jobs", "tests")
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
CONTRIBUTING_LINES_MAX = 110

TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".proto", ".xml", ".java", ".sh"}
# This file alone holds what it looks for.
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.-])/(home|root|Users|work|mnt)/\w")
UNFINISHED = {"NotImplementedError"}


def sources() -> Iterator[Path]:
    """Our own Python files; generated ones follow their generator's style."""
    for root in CODE_ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            if "_pb" not in path.parts and "__pycache__" not in path.parts:
                yield path


def texts() -> Iterator[Path]:
    """Everything that people read, outside what tools make."""
    yield from sources()
    for pattern in ("*.md", "*.toml", "*.yaml", "Makefile", ".ci/run"):
        yield from sorted(ROOT.glob(pattern))
    for root in ("docs", "charts", "crds", "images", *CODE_ROOTS):
        for path in sorted((ROOT / root).rglob("*")):
            skipped = {"_pb", "__pycache__", "target", "golden"} & set(path.parts)
            if path.suffix in TEXT_SUFFIXES - {".py"} and not skipped:
                yield path


@cache
def tree_of(path: Path) -> ast.Module:
    gc.disable()  # Hypothesis's callback of the collector makes CPython 3.11's parser fail
    try:
        return ast.parse(path.read_text(), str(path))
    finally:
        gc.enable()


def shown(path: Path, line: int = 0) -> str:
    where = str(path.relative_to(ROOT))
    return f"{where}:{line}" if line else where


def test_files_can_be_read_in_one_sitting() -> None:
    lengths = {shown(path): len(path.read_text().splitlines()) for path in sources()}
    assert not {name: n for name, n in lengths.items() if n > FILE_LINES_MAX}


def test_functions_fit_on_a_page() -> None:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    too_long = [
        f"{shown(path, node.lineno)} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in sources()
        for node in ast.walk(tree_of(path))
        if isinstance(node, functions)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not too_long


def test_every_module_says_what_it_is_for() -> None:
    assert not [shown(path) for path in sources() if not ast.get_docstring(tree_of(path))]


def test_nothing_is_left_for_later() -> None:
    left = [
        f"{shown(path, number)}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LEFTOVERS.search(line) and path != Path(__file__)
    ]
    unfinished = [
        shown(path, node.lineno)
        for path in sources()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Name) and node.id in UNFINISHED
    ]
    assert not left + unfinished


def test_no_path_of_one_machine() -> None:
    assert not [
        f"{shown(path, number)}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if MACHINE_PATHS.search(line) and path != Path(__file__)
    ]


def test_background_tasks_have_owners() -> None:
    """A task whose maker forgets it may be collected while it runs, and its exception is lost."""
    makers = {"create_task", "ensure_future"}
    forgotten = [
        shown(path, node.lineno)
        for path in sources()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in makers
        and re.search(r"asyncio|loop", ast.unparse(node.value.func.value))
    ]
    assert not forgotten, "start them in a `core.tasks.TaskSet`"


def test_the_folder_operator_stays_a_plain_folder() -> None:
    """With an `__init__.py`, `import operator` could find it in place of the standard library's."""
    assert not (ROOT / "operator" / "__init__.py").exists()


@pytest.mark.timeout(300)
def test_layers_import_only_downward() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_the_configuration_page_is_fresh() -> None:
    page = (ROOT / "docs" / "run" / "configuration.md").read_text()
    assert page == markdown(), "run `make docs`"


def test_the_page_of_policies_is_fresh() -> None:
    page = (ROOT / "docs" / "use" / "policies.md").read_text()
    assert page == policies_page(), "run `make docs`"


def test_the_page_of_rights_is_fresh() -> None:
    page = (ROOT / "docs" / "run" / "authorization.md").read_text()
    assert page == authorization_page(), "run `make docs`"


def test_the_page_of_pulsar_admin_is_fresh() -> None:
    page = admin_table.PAGE.read_text()
    assert page == admin_table.page(), "run `python -m tests.interop.admin_table page`"
    assert admin_table.NOT_COMPARED not in page
    rows = [f"| `{name.split(' ', 1)[1]}` |" for name in admin_table.catalog()]
    assert [row for row in rows if row not in page] == []
    assert admin_table.unknown_lines() == []


def make_targets() -> dict[str, str]:
    """Each target that a person may type, with its help."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    rules = [match for line in lines if (match := re.match(r"([a-z][\w-]*):(?!=)(.*)", line))]
    return {match[1]: match[2].partition("## ")[2] for match in rules}


def test_every_make_target_has_help() -> None:
    targets = make_targets()
    assert {"help", "setup", "run", "demo", "test", "lint", "bench"} <= set(targets)
    assert not [name for name, text in targets.items() if not text]
    phony = re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(phony) == sorted(targets)


def test_pages_name_only_targets_and_commands_that_exist() -> None:
    targets = make_targets()
    wrong = [
        f"{shown(path)}: make {name}"
        for path in texts()
        if path.suffix == ".md"
        for name in re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)", path.read_text(), re.MULTILINE)
        if name not in targets
    ]
    assert not wrong


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for path in texts():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            file = target.partition("#")[0]
            if file and "://" not in file and not (path.parent / file).exists():
                broken.append(f"{shown(path)}: {target}")
    assert not broken


def test_the_lock_knows_every_dependency() -> None:
    def names(requirements: list[str | dict[str, str]]) -> set[str]:
        texts = [item for item in requirements if isinstance(item, str)]
        return {re.split(r"[\[<>=!~; ]", text)[0].lower() for text in texts}

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = names(project["project"]["dependencies"])
    for group in project["project"]["optional-dependencies"].values():
        wanted |= names(group)
    for group in project["dependency-groups"].values():
        wanted |= names(group)
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    (ours,) = [package for package in locked if package["name"] == "magnetar"]
    known = list(ours["metadata"]["requires-dist"])
    for group in ours["metadata"]["requires-dev"].values():
        known += group
    assert wanted - {"magnetar"} <= {item["name"] for item in known}, "run `make lock`"


def test_the_changelog_leads_to_the_version() -> None:
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in {"Unreleased", __version__}


def test_contributing_stays_short() -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    assert len(lines) <= CONTRIBUTING_LINES_MAX


@pytest.mark.parametrize("name", ["services", "operator", "spark-jobs", "charts", "crds", "images"])
def test_every_top_folder_says_what_belongs_there(name: str) -> None:
    assert (ROOT / name / "README.md").read_text().startswith("# ")
