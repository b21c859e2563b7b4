"""The golden outcomes of each client with a real Pulsar, and our deliberate differences.

`clients_of_pulsar_4_2_4.json` has the outcomes by client and scenario; `record.py` writes it.
`client_differences.json` lists the differences: patterns of clients and scenarios, our outcome, and
the reason. Addresses, ports, times and ids are replaced, because they differ by run.
"""

import fnmatch
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .clients import Outcomes

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "security"
ANSWERS: Final = GOLDEN / "clients_of_pulsar_4_2_4.json"
DIFFERENCES: Final = GOLDEN / "client_differences.json"
_REPLACED: Final = (
    (re.compile(r"\b(localhost/127\.0\.0\.1|localhost|127\.0\.0\.1):\d+"), r"\1:PORT"),
    (re.compile(r"""(["']reqId["']:["' ]*)\d+"""), r"\1ID"),
    (re.compile(r"(ServletContainer-)[0-9a-f]+"), r"\1ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "TIME"),
    (re.compile(r"expired \d+ milliseconds ago"), "expired N milliseconds ago"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """An outcome of ours that is not Pulsar's, with the reason."""

    clients: str
    """A pattern of the shell."""
    scenarios: tuple[str, ...]
    """Patterns of the shell."""
    ours: str
    why: str

    def covers(self, client: str, scenario: str) -> bool:
        """Returns whether the difference applies to the scenario with the client."""
        matches = fnmatch.fnmatchcase
        return matches(client, self.clients) and any(
            matches(scenario, pattern) for pattern in self.scenarios
        )


def normalized(found: dict[str, Outcomes]) -> dict[str, Outcomes]:
    """Replaces the parts that differ by run."""
    return {
        client: {scenario: _normalized(text) for scenario, text in sorted(outcomes.items())}
        for client, outcomes in sorted(found.items())
    }


def _normalized(text: str) -> str:
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return text


def of_pulsar() -> dict[str, Outcomes]:
    """Returns the outcomes with a real Pulsar."""
    found: dict[str, Outcomes] = json.loads(ANSWERS.read_text())
    return found


def differences() -> list[Difference]:
    """Returns the deliberate differences."""
    return [Difference(**row) for row in json.loads(DIFFERENCES.read_text())]


def expected_of_ours() -> dict[str, Outcomes]:
    """Returns the expected outcomes with our server."""
    rows = differences()
    return {
        client: {
            scenario: next((row.ours for row in rows if row.covers(client, scenario)), outcome)
            for scenario, outcome in outcomes.items()
        }
        for client, outcomes in of_pulsar().items()
    }
