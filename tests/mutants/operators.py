"""The mutation operators: what mistakes a line of code can hold.

Each operator takes a node of the syntax tree and yields changes; a change alters the tree in place
and returns the function that restores it. The operators are those that break promises: comparisons
and boundaries, conditions forced or with an operand dropped, waits and statements dropped,
arguments swapped or dropped, exceptions swallowed or let through, clean-up dropped.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

Undo = Callable[[], None]

COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
BOUNDARIES: Final = (ast.If, ast.While, ast.Return)
"""Statements whose numbers are boundaries more often than sizes."""
TWINS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
"""Functions that take the same arguments and are mistaken for one another."""
DEFAULTS: Final = {"strict": False}
"""Keywords that the linter wants written out with their default."""
NOT_PROMISED: Final = frozenset(
    {
        "debug",
        "info",
        "warning",
        "error",
        "exception",
        "log",
        "observe",
        "inc",
        "dec",
        "cast",
        "print",
    }
)
"""Calls by name whose loss changes what people see, and nothing that a client is promised."""


@dataclass(frozen=True, slots=True)
class Change:
    """One way to alter a node. `text` replaces the altered node's own text in the name."""

    kind: str
    apply: Callable[[ast.AST], Undo]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a node is: its smallest statement, and all statements of the outermost function."""

    statement: ast.stmt
    function: list[ast.stmt]


def changes_of(node: ast.AST, scope: Scope) -> Iterator[Change]:  # noqa: C901  # a table
    """All changes of one node."""
    if _says_only(scope.statement):
        return
    match node:
        case ast.Compare(ops=[_, *_]):
            yield from _comparisons(node)
        case ast.BoolOp():
            for number, operand in enumerate(node.values):
                text = ast.unparse(operand)
                yield Change("drops operand", _one_less(number), f"without `{text}`")
        case ast.UnaryOp(op=ast.Not()):
            yield Change("drops not", _fields(op=ast.Not(), operand=_negated(node.operand)))
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            if not _is_text(node):
                yield Change("arithmetic", _fields(op=ARITHMETIC[type(node.op)]()))
        case ast.Call():
            yield from _calls(node)
        case ast.Constant(value=bool() as value):
            yield Change("flips constant", _fields(value=not value))
        case ast.Constant(value=int() as value) if isinstance(scope.statement, BOUNDARIES):
            yield Change("off by one", _fields(value=value + 1))
        case ast.IfExp():
            yield Change("forces condition", _fields(test=ast.Constant(True)))
            yield Change("forces condition", _fields(test=ast.Constant(False)))
        case ast.comprehension(ifs=[_, *_]):
            for number, condition in enumerate(node.ifs):
                text = f"without `if {ast.unparse(condition)}`"
                yield Change("drops filter", _without("ifs", number), text)
        case ast.stmt():
            yield from _statements(node)


def _says_only(statement: ast.stmt) -> bool:
    """Whether a statement logs, counts or raises with a text: its expressions promise nothing."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name in NOT_PROMISED
    return isinstance(statement, ast.Assert)


def _comparisons(node: ast.Compare) -> Iterator[Change]:
    for number, operator in enumerate(node.ops):
        for other in COMPARISONS.get(type(operator), ()):
            ops: list[ast.cmpop] = [*node.ops]
            ops[number] = other()
            yield Change("compares otherwise", _fields(ops=ops))


def _calls(node: ast.Call) -> Iterator[Change]:
    if _is_twin(node):
        yield Change(
            "calls twin", _fields(func=ast.Name(TWINS[ast.unparse(node.func)], ast.Load()))
        )
    for number in range(len(node.args) - 1):
        one, other = node.args[number : number + 2]
        if isinstance(one, ast.Starred) or isinstance(other, ast.Starred) or _is_twin(node):
            continue
        if ast.dump(one) != ast.dump(other) and not (_is_text(one) or _is_text(other)):
            args = [*node.args]
            args[number], args[number + 1] = other, one
            yield Change("swaps arguments", _fields(args=args))
    for number, keyword in enumerate(node.keywords):
        if keyword.arg is not None and not _is_default(keyword):
            text = f"without `{keyword.arg}={ast.unparse(keyword.value)}`"
            yield Change("drops keyword", _without("keywords", number), text)


def _is_default(keyword: ast.keyword) -> bool:
    value = keyword.value
    return isinstance(value, ast.Constant) and DEFAULTS.get(keyword.arg or "") is value.value


def _statements(node: ast.stmt) -> Iterator[Change]:  # noqa: C901  # a table
    match node:
        case ast.If() | ast.While():
            if not (isinstance(node, ast.While) and isinstance(node.test, ast.Constant)):
                yield Change("forces condition", _fields(test=ast.Constant(False)))
            if isinstance(node, ast.If):
                yield Change("forces condition", _fields(test=ast.Constant(True)))
        case ast.Expr(value=ast.Yield() | ast.YieldFrom() | ast.Constant()):
            pass
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Break() | ast.Delete():
            yield Change("drops statement", _emptied, "pass")
        case ast.Continue():
            yield Change("drops statement", _emptied, "pass")
        case ast.Return(value=None):
            yield Change("drops statement", _emptied, "pass")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield Change("drops statement", _emptied, "pass")
        case ast.With(items=items) | ast.AsyncWith(items=items):
            if all(item.optional_vars is None for item in items):
                yield Change("drops with", _unwrapped, "its body alone")
        case ast.Try():
            for number, handler in enumerate(node.handlers):
                caught = ast.unparse(handler.type) if handler.type else "everything"
                yield Change(
                    "lets through", _handled(number, ast.Raise()), f"lets `{caught}` through"
                )
                if not all(isinstance(each, ast.Pass) or _says_only(each) for each in handler.body):
                    yield Change("swallows", _handled(number, ast.Pass()), f"swallows `{caught}`")
            if node.finalbody:
                yield Change("drops clean-up", _fields(finalbody=[ast.Pass()]), "without finally")


def _is_twin(node: ast.Call) -> bool:
    """Whether it calls one of TWINS, which take their arguments in any order."""
    return isinstance(node.func, ast.Name) and node.func.id in TWINS


def _is_text(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.JoinedStr)
        or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in ast.walk(node)
    )


def _negated(node: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), node)


def _fields(**values: object) -> Callable[[ast.AST], Undo]:
    def apply(node: ast.AST) -> Undo:
        old = {name: getattr(node, name) for name in values}
        for name, value in values.items():
            setattr(node, name, value)

        def undo() -> None:
            for name, value in old.items():
                setattr(node, name, value)

        return undo

    return apply


def _without(field: str, number: int) -> Callable[[ast.AST], Undo]:
    def apply(node: ast.AST) -> Undo:
        old = getattr(node, field)
        left = [each for place, each in enumerate(old) if place != number]
        return _fields(**{field: left})(node)

    return apply


def _one_less(number: int) -> Callable[[ast.AST], Undo]:
    def apply(node: ast.AST) -> Undo:
        assert isinstance(node, ast.BoolOp)
        left = [each for place, each in enumerate(node.values) if place != number]
        return _become(node, left[0] if len(left) == 1 else ast.BoolOp(node.op, left))

    return apply


def _handled(number: int, statement: ast.stmt) -> Callable[[ast.AST], Undo]:
    def apply(node: ast.AST) -> Undo:
        assert isinstance(node, ast.Try)
        return _fields(body=[statement])(node.handlers[number])

    return apply


def _become(node: ast.AST, other: ast.AST) -> Undo:
    """Makes a node another one in place, so that whatever holds it need not be known."""
    kind, old = node.__class__, dict(node.__dict__)
    place = {name: old[name] for name in old if name.endswith(("lineno", "col_offset"))}
    node.__class__ = other.__class__
    node.__dict__.clear()
    node.__dict__.update({**other.__dict__, **place})

    def undo() -> None:
        node.__class__ = kind
        node.__dict__.clear()
        node.__dict__.update(old)

    return undo


def _emptied(node: ast.AST) -> Undo:
    return _become(node, ast.Pass())


def _unwrapped(node: ast.AST) -> Undo:
    assert isinstance(node, ast.With | ast.AsyncWith)
    return _become(node, ast.If(test=ast.Constant(True), body=node.body, orelse=[]))
