"""Turns a class that blocks on coroutines (`run(coroutine)`) into one that awaits them.

Spark's tasks run in threads of executors, and block. The simulation has one thread, so it compiles
the class anew from its own source: `run(x)` becomes `await x`, a method becomes a coroutine
function, and a loop over the entries that a reader yields becomes an asynchronous one. So the
product's own steps, in their own order, are under test.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Collection

BLOCKS = "run"


class Awaiting(ast.NodeTransformer):
    """`methods` become coroutine functions; `iterations` are calls that yield asynchronously."""

    def __init__(self, methods: Collection[str], iterations: Collection[str]) -> None:
        self._methods, self._iterations = methods, iterations
        self.changed = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name not in self._methods:
            return node
        self.changed += 1
        fields = {name: getattr(node, name) for name in node._fields}
        return ast.copy_location(ast.AsyncFunctionDef(**fields), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Name(id=name) if name == BLOCKS:
                return ast.copy_location(ast.Await(node.args[0]), node)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in self._methods:
                return ast.copy_location(ast.Await(node), node)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        match node.iter:
            case ast.Call(func=ast.Attribute(attr=name)) if name in self._iterations:
                fields = {name: getattr(node, name) for name in node._fields}
                return ast.copy_location(ast.AsyncFor(**fields), node)
        return node


def awaiting(blocking: type, methods: Collection[str], iterations: Collection[str]) -> type:
    """The class with these methods as coroutine functions; its globals are its module's own."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(blocking)))
    transformer = Awaiting(methods, iterations)
    transformer.visit(tree)
    if transformer.changed != len(methods):
        raise LookupError(f"{blocking.__name__} has not all of {sorted(methods)}")
    made: dict[str, type] = {}
    module = sys.modules[blocking.__module__]
    code = compile(ast.fix_missing_locations(tree), str(module.__file__), "exec")
    exec(code, vars(module), made)  # noqa: S102  # the product's own source
    return made[blocking.__name__]
