"""Values of policies as REST has them, drawn from the policies' types; and values that are not.

Each value is valid with all its rules; each wrong one is refused whatever else is set.
"""

from typing import Any, Final

from hypothesis import strategies as st

from magnetar.policies.types import (
    Boolean,
    Choice,
    Integer,
    ListOf,
    MapOf,
    Number,
    PolicyInvalid,
    Record,
    Text,
    Type,
)

SAFE_INTEGER_MAX: Final = 2**53
ITEMS_DRAWN_MAX: Final = 3


def values(kind: Type) -> st.SearchStrategy[Any]:
    """Valid values."""
    return _parts(kind).filter(lambda value: is_valid(kind, value))


def is_valid(kind: Type, value: object) -> bool:
    try:
        kind.check(value)
    except PolicyInvalid:
        return False
    return True


def wrong(kind: Type) -> st.SearchStrategy[Any]:
    """JSON that is no value of the type, nor could be taken for one, nor for none."""
    other = st.recursive(
        st.sampled_from([-3, 1.5, "nonsense nobody means", 2**70])
        | st.integers(-(2**40), -2)
        | st.text("xyz \"'{", min_size=1),
        lambda inner: (
            st.lists(inner, min_size=1, max_size=2)
            | st.dictionaries(st.text("ab", min_size=1), inner, min_size=1, max_size=2)
        ),
        max_leaves=4,
    )
    return other.filter(lambda value: not is_valid(kind, value))


def _parts(kind: Type) -> st.SearchStrategy[Any]:
    match kind:
        case Integer():
            high = min(kind.high, SAFE_INTEGER_MAX)
            return st.sampled_from([kind.low, high]) | st.integers(kind.low, high)
        case Number():
            return st.floats(kind.low, min(kind.high, 1e6), allow_nan=False)
        case Boolean():
            return st.booleans()
        case Text():
            return st.from_regex(r"[a-z][-a-z0-9]{0,8}", fullmatch=True)
        case Choice():
            return st.sampled_from(sorted(kind.meanings))
        case ListOf():
            return st.lists(_parts(kind.item), unique=True, min_size=1, max_size=ITEMS_DRAWN_MAX)
        case MapOf():
            keys, ones = _parts(kind.key), _parts(kind.value)
            return st.dictionaries(keys, ones, min_size=1, max_size=ITEMS_DRAWN_MAX)
        case Record():
            required = {one.name: _parts(one.type) for one in kind.fields if one.required}
            others = {one.name: _parts(one.type) for one in kind.fields if not one.required}
            return st.fixed_dictionaries(required, optional=others)
