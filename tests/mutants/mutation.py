"""`mutations_of(path)`: the mutants of one source file; each compiles its module when it is tried.

Only code inside functions is mutated: the campaign swaps the code of live functions
(`tests.mutants.swap`), and a module's own body has run by then. A mutation is named by its file,
its function, its kind and the text before and after, never by a line number, so that a name
survives changes elsewhere in the file.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Final

from tests.mutants.operators import Change, Scope, changes_of

TEXT_MAX: Final = 140
"""Characters of a statement in a name."""
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
UNTESTED_METHODS: Final = frozenset({"__repr__", "__str__"})
"""Texts for people; their wording is no promise."""


@dataclass(frozen=True, slots=True, eq=False)
class Mutation:
    """One mistake. `lines` are the lines of the smallest statement that holds it."""

    file: str
    function: str
    kind: str
    before: str
    after: str
    number: int
    """Among mutations of the same name in the same function, from 0."""
    lines: tuple[int, ...]
    function_lines: range
    """Of the outermost function that it is in."""
    compiled: Callable[[], CodeType]
    """Raises `SyntaxError` or `ValueError` where the mistake is no Python."""

    @property
    def name(self) -> str:
        number = f" #{self.number + 1}" if self.number else ""
        return f"{self.file}::{self.function}: {self.kind}: {self.before} -> {self.after}{number}"

    @property
    def key(self) -> str:
        """12 hexadecimal digits of the name."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class _Site:
    function: str
    function_lines: range
    statement: ast.stmt
    node: ast.AST
    change: Change


def mutations_of(path: Path, root: Path) -> Iterator[Mutation]:
    """All mutations of a file, in the order of its lines."""
    tree = ast.parse(path.read_text())
    file = str(path.relative_to(root))
    seen: Counter[tuple[str, ...]] = Counter()
    for site in _sites(tree):
        before = _shown(site.node)
        undo = site.change.apply(site.node)
        after = site.change.text or _shown(site.node)
        undo()
        if before == after:
            continue
        same = (site.function, site.change.kind, before, after)
        yield Mutation(
            file,
            *same,
            number=seen[same],
            lines=_lines(site),
            function_lines=site.function_lines,
            compiled=partial(_compiled, tree, path, site),
        )
        seen[same] += 1


def _lines(site: _Site) -> tuple[int, ...]:
    """Where a test must have been to notice it."""
    if isinstance(site.node, ast.stmt):
        last = _head_end(site.node)
    else:
        last = int(getattr(site.node, "end_lineno", 0)) or _head_end(site.statement)
    return tuple(range(site.statement.lineno, last + 1))


def _compiled(tree: ast.Module, path: Path, site: _Site) -> CodeType:
    undo = site.change.apply(site.node)
    try:
        return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    finally:
        undo()


def _shown(node: ast.AST) -> str:
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _head_end(node: ast.stmt) -> int:
    """The last line of a statement without the statements in it."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        return max(node.lineno, int(body[0].lineno) - 1)
    return node.end_lineno or node.lineno


def _sites(tree: ast.Module) -> Iterator[_Site]:
    for function, scope in _functions(tree.body, ""):
        lines = range(
            min((each.lineno for each in scope), default=0),
            1 + max((each.end_lineno or each.lineno for each in scope), default=0),
        )
        for statement in scope:
            for node in _of_statement(statement):
                for change in changes_of(node, Scope(statement, scope)):
                    yield _Site(function, lines, statement, node, change)


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Each outermost function with the statements in it, those of nested functions included."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, FUNCTIONS) and node.name not in UNTESTED_METHODS:
            inner = [each for each in ast.walk(node) if isinstance(each, ast.stmt)]
            inner = [each for each in inner if each is not node and not _is_docstring(each)]
            yield prefix + node.name, sorted(inner, key=lambda each: (each.lineno, each.col_offset))
        elif isinstance(node, ast.If | ast.Try):
            yield from _functions(node.body, prefix)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _of_statement(statement: ast.stmt) -> Iterator[ast.AST]:
    """The statement and its expressions, without the statements and annotations in it."""
    yield statement
    waiting: list[ast.AST] = [statement]
    while waiting:
        for name, value in ast.iter_fields(waiting.pop()):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST) and not isinstance(each, ast.stmt):
                    if not isinstance(each, ast.ExceptHandler):
                        yield each
                    if isinstance(each, ast.ExceptHandler):
                        continue
                    waiting.append(each)
