"""The part of CONTRIBUTING's rules on language that a test can check.

Docstrings, comments and pages avoid phrases that have a plain counterpart. Variables of product
code are named by nouns of the domain.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from .test_tidy import ROOT, shown, tree_of
from .test_unused import product

PHRASES = {
    r"see the module'?s?( text)?\.": "a sentence that stands alone",
    r"\b(who(m|se)?|wher)ever\b": "a noun, or 'any'",
    r"\b(no|some|every)body\b": "no/a/every client, broker, caller",
    r"\btold\b": "notified, reported, recorded, sent",
    r"\blet(s|ting)? go of\b": "release, delete, drop",
    r"\banew\b": "again, or re-replicate, rebuild",
    r"\b(come|comes|came|coming) to (be|rest|an end)\b": "become, stop, end",
    r"\bas (it|they) stands?\b": "unchanged",
    r"\b(give|gives|gave|given|giving) (it |them )?back\b": "return, release",
    r"\blook(s|ed)? (at|for) (it|them|who|what|whether)\b": "check, search, read",
    r"\b(he|she|his|her)\b": "connections and processes are 'it'",
}
"""Phrases to avoid, and what to write instead."""

NAMES = {"one", "told", "found", "made", "there", "some", "whose", "here", "said", "who", "each"}
"""Names that say nothing about the object."""

PAGES = ("README.md", "CONTRIBUTING.md", "docs", "charts", "images", "operator", "tests")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The line and text of each comment and docstring."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def pages() -> Iterator[Path]:
    for name in PAGES:
        path = ROOT / name
        yield from [path] if path.is_file() else sorted(path.rglob("*.md"))


def offences(path: Path, line: int, text: str) -> list[str]:
    return [
        f"{shown(path, line + text.count(chr(10), 0, match.start()))} '{match[0]}': write {instead}"
        for phrase, instead in PHRASES.items()
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]


def test_comments_and_docstrings_use_plain_words() -> None:
    bad = [
        offence
        for path in product()
        for line, text in texts(path)
        for offence in offences(path, line, text)
    ]
    assert not bad, "\n".join(bad)


def test_pages_use_plain_words() -> None:
    bad = [offence for path in pages() for offence in offences(path, 1, path.read_text())]
    assert not bad, "\n".join(bad)


def test_variables_are_named_after_their_objects() -> None:
    bad = [
        f"{shown(path, node.lineno)} {name}"
        for path in product()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Name | ast.arg)
        if (name := _bound_name(node)) in NAMES
    ]
    assert not bad, "\n".join(bad)


def _bound_name(node: ast.Name | ast.arg) -> str:
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node.ctx, ast.Store) else ""
