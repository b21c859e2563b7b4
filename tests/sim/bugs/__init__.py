"""Planted bugs: each is one mistake that such systems have made, put into the code of a run.

A checker that has caught nothing proves nothing. Every bug is a patch of the product's own code,
applied in the process of a run, with the story that it stands for and the seed that finds it;
`test_bugs.py` shows that it does. A bug may bias the plan towards the events that it needs, so that
few seeds find it; other runs draw the same events.
"""

from collections.abc import Iterable

from tests.sim.bugs.bug import Bug


def all_bugs() -> dict[str, Bug]:
    """By name."""
    from tests.sim.bugs import (
        bookie,
        broker,
        client,
        deduplication,
        delays,
        hazards,
        instances,
        ledger,
        tables,
        topics,
        transactions,
    )

    found: Iterable[Bug] = (
        *ledger.BUGS,
        *bookie.BUGS,
        *broker.BUGS,
        *instances.BUGS,
        *hazards.BUGS,
        *topics.BUGS,
        *transactions.BUGS,
        *deduplication.BUGS,
        *delays.BUGS,
        *tables.BUGS,
        *client.BUGS,
    )
    return {bug.name: bug for bug in found}


def bug_of(name: str) -> Bug | None:
    """The bug of that name; none for no name."""
    if not name:
        return None
    bugs = all_bugs()
    if name not in bugs:
        raise KeyError(f"no bug is called {name!r}; there are: {', '.join(sorted(bugs))}")
    return bugs[name]
