"""`LiveFunctions`: gives the functions of a running interpreter the code of a mutated module.

A function holds its code by reference, so a mutant needs no new import: every live function whose
code came from a changed place of the file receives the changed code, wherever a decorator, a
registry or a closure keeps it.
"""

import contextlib
import gc
import importlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType


def import_sources(files: Iterable[str]) -> None:
    """Imports these source files, each below a folder of the repository's root.

    The product imports some modules late. Their functions are not live until then, so that none of
    their mutants could be tried. A module that cannot be imported here is left out.
    """
    for file in sorted(files):
        parts = Path(file).with_suffix("").parts[1:]
        with contextlib.suppress(ImportError):
            importlib.import_module(".".join(parts).removesuffix(".__init__"))


class LiveFunctions:
    """The functions that live now, by file and by place. Built once, after all imports."""

    def __init__(self) -> None:
        gc.unfreeze()  # else those that the package before has frozen are not among the objects
        self._by_code: dict[str, dict[tuple[str, int], list[FunctionType]]] = defaultdict(dict)
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                code = each.__code__
                at = (code.co_qualname, code.co_firstlineno)
                self._by_code[code.co_filename].setdefault(at, []).append(each)

    def install(self, mutated: CodeType) -> int:
        """Swaps the code of all functions that the mutated module changes; how many it swapped.

        Raises `ValueError` where a closure has other variables in the mutant.
        """
        swapped = 0
        live = self._by_code[mutated.co_filename]
        for code in _codes(mutated):
            for function in live.get((code.co_qualname, code.co_firstlineno), ()):
                if function.__code__ != code and _twin(function.__code__, code):
                    function.__code__ = code
                    swapped += 1
        return swapped


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _twin(one: CodeType, other: CodeType) -> bool:
    """Whether both are the same function: two lambdas in a line may differ in arguments."""
    return _arguments(one) == _arguments(other)


def _arguments(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
