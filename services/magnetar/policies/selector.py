"""The expressions of the entry filter `expression`: SQL's conditions on a message. Pure.

    region = 'eu' AND (amount BETWEEN 10 AND 100 OR kind IN ('a', 'b')) AND key LIKE 'order-%'

An identifier is a property of the message; `key` is its partition key; `"any text"` in double
quotes is a property with any name. Operators: `= <> != < <= > >=`, `AND`, `OR`, `NOT`, `[NOT] IN`,
`[NOT] BETWEEN`, `[NOT] LIKE` with `%` and `_`, `IS [NOT] NULL`. Keywords have any case. Properties
are texts; compared with a number, they are read as one.

As in SQL, a condition on a missing property, or on a text that is no number, is unknown: it is
neither true nor false, and a message is selected only if the whole expression is true.

An expression is parsed into closures; nothing is evaluated as code. Bounds: its length, its
nesting, and a match of LIKE that takes at most the product of both lengths.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

EXPRESSION_CHARACTERS_MAX: Final = 4_096
NESTING_MAX: Final = 50

_TOKENS: Final = re.compile(
    r"""\s*(?:
    (?P<number>[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<word>[A-Za-z_$][A-Za-z0-9_$.]*)
    |(?P<symbol><>|!=|<=|>=|[=<>(),])
    )""",
    re.VERBOSE,
)
_NUMBER: Final = re.compile(r"\s*[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?\s*")
_KEYWORDS: Final = frozenset(("and", "or", "not", "in", "between", "like", "is", "null"))
_COMPARISONS: Final = ("=", "<>", "!=", "<", "<=", ">", ">=")
KEY: Final = "key"

Truth = bool | None
Value = str | float | None


@dataclass(frozen=True, slots=True)
class Message:
    """What a filter sees of a message."""

    properties: Mapping[str, str]
    key: str | None = None


Condition = Callable[[Message], Truth]
Operand = Callable[[Message], Value]


class SelectorInvalid(ValueError):
    """An expression cannot be parsed; the text says where and why."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def parse(expression: str) -> Callable[[Message], bool]:
    """Returns the condition of an expression; raises SelectorInvalid."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise SelectorInvalid(f"it is longer than {EXPRESSION_CHARACTERS_MAX} characters")
    parser = _Parser(_tokens(expression))
    condition = parser.disjunction(0)
    parser.end()
    return lambda message: condition(message) is True


def _tokens(expression: str) -> list[_Token]:
    tokens, at = [], 0
    end = len(expression.rstrip())
    while at < end:
        match = _TOKENS.match(expression, at)
        if match is None or match.lastgroup is None:
            raise SelectorInvalid(f"character {at + 1} starts no word, number, text or operator")
        kind, text = match.lastgroup, match[match.lastgroup]
        if kind == "word" and text.lower() in _KEYWORDS:
            kind, text = "keyword", text.lower()
        tokens.append(_Token(kind, text, match.start(match.lastgroup)))
        at = match.end()
    return tokens


class _Parser:
    """A recursive descent over the tokens; each method returns the condition that it has read."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def end(self) -> None:
        """Raises SelectorInvalid if tokens are left."""
        if self._at < len(self._tokens):
            raise self._unexpected("the end")

    def disjunction(self, depth: int) -> Condition:
        """Reads `a OR b OR …`."""
        if depth > NESTING_MAX:
            raise SelectorInvalid(f"it nests more than {NESTING_MAX} conditions")
        parts = [self._conjunction(depth)]
        while self._take("or"):
            parts.append(self._conjunction(depth))
        return parts[0] if len(parts) == 1 else _any_of(parts)

    def _conjunction(self, depth: int) -> Condition:
        parts = [self._negation(depth)]
        while self._take("and"):
            parts.append(self._negation(depth))
        return parts[0] if len(parts) == 1 else _all_of(parts)

    def _negation(self, depth: int) -> Condition:
        negated = False
        while self._take("not"):
            negated = not negated
        condition = self._predicate(depth)
        return _negated(condition) if negated else condition

    def _predicate(self, depth: int) -> Condition:
        if self._take("("):
            condition = self.disjunction(depth + 1)
            self._require(")")
            return condition
        operand = self._operand()
        for symbol in _COMPARISONS:
            if self._take(symbol):
                return _compared(symbol, operand, self._operand())
        if self._take("is"):
            negated = self._take("not")
            self._require("null")
            return lambda message: (operand(message) is None) is not negated
        negated = self._take("not")
        condition = self._tested(operand)
        return _negated(condition) if negated else condition

    def _tested(self, operand: Operand) -> Condition:
        if self._take("in"):
            self._require("(")
            choices = [_equal(operand, self._operand())]
            while self._take(","):
                choices.append(_equal(operand, self._operand()))
            self._require(")")
            return _any_of(choices)
        if self._take("between"):
            low = self._operand()
            self._require("and")
            high = self._operand()
            return _all_of([_compared(">=", operand, low), _compared("<=", operand, high)])
        if self._take("like"):
            token = self._next("a text in single quotes")
            if token.kind != "text":
                raise self._unexpected("a text in single quotes", back=1)
            return _like(operand, _unquoted(token.text))
        raise self._unexpected("an operator")

    def _operand(self) -> Operand:
        token = self._next("a property, a text or a number")
        if token.kind == "number":
            number = float(token.text)
            return lambda _: number
        if token.kind == "text":
            text = _unquoted(token.text)
            return lambda _: text
        if token.kind == "word" and token.text == KEY:
            return lambda message: message.key
        if token.kind in ("word", "quoted"):
            name = token.text if token.kind == "word" else _unquoted(token.text)
            return lambda message: message.properties.get(name)
        raise self._unexpected("a property, a text or a number", back=1)

    def _take(self, text: str) -> bool:
        """Reads this keyword or symbol if it comes next."""
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.kind in ("keyword", "symbol") and token.text == text:
                self._at += 1
                return True
        return False

    def _require(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(text.upper())

    def _next(self, wanted: str) -> _Token:
        if self._at >= len(self._tokens):
            raise self._unexpected(wanted)
        self._at += 1
        return self._tokens[self._at - 1]

    def _unexpected(self, wanted: str, *, back: int = 0) -> SelectorInvalid:
        at = self._at - back
        if at >= len(self._tokens):
            return SelectorInvalid(f"it ends where {wanted} is expected")
        token = self._tokens[at]
        return SelectorInvalid(f"{token.text} at character {token.at + 1}: expected {wanted}")


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def _any_of(parts: list[Condition]) -> Condition:
    def condition(message: Message) -> Truth:
        unknown = False
        for part in parts:
            truth = part(message)
            if truth:
                return True
            unknown = unknown or truth is None
        return None if unknown else False

    return condition


def _all_of(parts: list[Condition]) -> Condition:
    def condition(message: Message) -> Truth:
        unknown = False
        for part in parts:
            truth = part(message)
            if truth is False:
                return False
            unknown = unknown or truth is None
        return None if unknown else True

    return condition


def _negated(condition: Condition) -> Condition:
    def negated(message: Message) -> Truth:
        truth = condition(message)
        return None if truth is None else not truth

    return negated


def _equal(left: Operand, right: Operand) -> Condition:
    return _compared("=", left, right)


def _compared(symbol: str, left: Operand, right: Operand) -> Condition:
    def condition(message: Message) -> Truth:
        order = _order(left(message), right(message))
        return None if order is None else _holds(symbol, order)

    return condition


def _holds(symbol: str, order: int) -> bool:
    if symbol == "=":
        return order == 0
    if symbol in ("<>", "!="):
        return order != 0
    return order in {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}[symbol]


def _order(left: Value, right: Value) -> int | None:
    """Compares two texts, or two numbers; None if one is missing or no number."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    first, second = _number(left), _number(right)
    return None if first is None or second is None else (first > second) - (first < second)


def _number(value: str | float) -> float | None:
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else None
    return value


def _like(operand: Operand, pattern: str) -> Condition:
    def condition(message: Message) -> Truth:
        value = operand(message)
        return matches(pattern, value) if isinstance(value, str) else None

    return condition


def matches(pattern: str, text: str) -> bool:
    """Whether the text matches a pattern of LIKE: `%` is any text, `_` any character.

    Steps back only to the last `%`, so the time is at most the product of both lengths.
    """
    at = in_text = 0
    star, resume = -1, 0
    while in_text < len(text):
        if at < len(pattern) and pattern[at] == "%":
            star, resume = at, in_text
            at += 1
        elif at < len(pattern) and pattern[at] in ("_", text[in_text]):
            at += 1
            in_text += 1
        elif star >= 0:
            at = star + 1
            resume += 1
            in_text = resume
        else:
            return False
    return all(character == "%" for character in pattern[at:])
