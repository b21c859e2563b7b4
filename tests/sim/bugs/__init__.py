"""Planted bugs: each is one mistake that such systems have made, put into the code of a run.

A checker that has caught nothing proves nothing. Every bug is a patch of the product's own code,
applied in the process of a run, with the story that it stands for; `test_bugs.py` shows that the
simulation finds each.
"""

from collections.abc import Callable

Patch = Callable[[], None]


def patch_of(name: str) -> Patch | None:
    """The patch of that name; none for no name."""
    if not name:
        return None
    raise KeyError(name)
