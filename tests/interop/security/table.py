"""The scenarios: how a client authenticates, and what is wrong with that. Pure.

Each is tried by every client against every server. Between stages, the server's files change: in
`misnamed` its certificate names another host, in `revoked` the key of tokens, the CA of clients and
the users are replaced.
"""

from dataclasses import dataclass
from typing import Final, Literal

Method = Literal["token", "basic", "tls", "oauth2"]
Connection = Literal["plain", "tls", "wrong-ca", "wrong-host"]
Stage = Literal["first", "misnamed", "revoked"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way to authenticate."""

    method: Method
    case: str
    """What the client presents; `credentials.py` makes it."""
    connection: Connection
    """The port, and what is wrong with the server's certificate in the eyes of the client."""
    stage: Stage = "first"

    @property
    def succeeds(self) -> bool:
        """Returns whether a client that does this may produce."""
        return self.case in ("right", "renewed") and self.connection in ("plain", "tls")

    @property
    def timeout_s(self) -> int:
        """Returns the timeout of clients: some of them try again until then if this must fail."""
        return 60 if self.succeeds or self.case == "ungranted" else 10

    @property
    def name(self) -> str:
        """Names the scenario in golden files and topics."""
        return f"{self.method}-{self.case}-{self.connection}"


def _table() -> tuple[Scenario, ...]:
    first: dict[Method, tuple[str, ...]] = {
        "token": ("right", "forged", "expired", "ungranted", "absent"),
        "basic": ("right", "wrong-password", "unknown-user", "ungranted"),
        "oauth2": ("right", "wrong-secret", "expired", "forged", "ungranted"),
        "tls": ("right", "wrong-authority", "expired", "ungranted", "absent"),
    }
    rows: list[Scenario] = []
    for method, cases in first.items():
        port: Connection = "tls" if method == "tls" else "plain"
        rows += [Scenario(method, case, port) for case in cases]
        rows.append(Scenario(method, "right", "wrong-ca"))
        rows.append(Scenario(method, "right", "wrong-host", "misnamed"))
        rows.append(Scenario(method, "revoked", port, "revoked"))
        rows.append(Scenario(method, "renewed", port, "revoked"))
        if method != "tls":
            rows.append(Scenario(method, "right", "tls"))
    return tuple(rows)


SCENARIOS: Final = _table()
PERF_SCENARIOS: Final = tuple(
    scenario
    for scenario in SCENARIOS
    if scenario.name
    in (
        "token-right-plain",
        "token-forged-plain",
        "basic-right-plain",
        "basic-wrong-password-plain",
        "oauth2-right-plain",
        "oauth2-expired-plain",
        "tls-right-tls",
    )
)
"""Of pulsar-perf, which uses Java's client: each run of it takes seconds."""
