"""pulsar-perf with every scenario, on a real Pulsar and on ours.

    python -m tests.interop.security.perf SCRIPTS

The tests run a few scenarios of it only, because each takes seconds. SCRIPTS is as in `record.py`.
Exit status 1 if an outcome differs, and is no difference of `client_differences.json`.
"""

import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from . import answers, campaign, programs, servers
from .clients import Outcomes
from .credentials import Realm, realm
from .table import SCENARIOS

CLIENT: Final = "pulsar-perf"
CLIENT_WITHIN: Final = "java-4.0"
"""What differs for this client differs for pulsar-perf, which uses it."""

Serves = Callable[[Realm, Path], AbstractContextManager[campaign.RunningServer]]


def outcomes(made: programs.Programs, serves: Serves) -> Outcomes:
    """Returns the outcomes with one server."""
    with tempfile.TemporaryDirectory() as name, realm(Path(name)) as identities:
        data = Path(name, "server")
        data.mkdir()
        with serves(identities, data) as server:
            found = campaign.run(server, identities, made, Path(name), perf_only=True)
    return answers.normalized(found)[CLIENT]


def main(scripts: Path) -> int:
    """Runs all scenarios on both servers and prints the differences."""
    made = programs.prepare()
    real = outcomes(made, partial(servers.real_pulsar, scripts))
    own = outcomes(made, servers.ours)
    rows = answers.differences()
    unexplained = 0
    for scenario, outcome in real.items():
        if own[scenario] == outcome:
            print("same", scenario)
            continue
        listed = any(row.covers(CLIENT_WITHIN, scenario) for row in rows)
        unexplained += not listed
        print("listed" if listed else "DIFFERS", scenario)
        print(f"    Pulsar: {outcome}\n    ours:   {own[scenario]}")
    print(f"{len(real)} scenarios, {unexplained} unexplained differences")
    return 1 if unexplained or len(real) != len(SCENARIOS) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
