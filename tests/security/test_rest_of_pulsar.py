"""The codes and texts of refusals, request by request, as a Pulsar 4.2.4 gives them.

`tests/golden/security/rest_of_pulsar_4_2_4.json` was recorded from a Pulsar with the roles of
`rest.py`: for each request, the outcome (status, and the text of a refusal) and the roles that got
it. `-` sends no token, `wrong` one that nobody signed. The differences of this
broker are listed here with their reasons.
"""

import json
from pathlib import Path
from typing import Final

import pytest

from .rest import WRONG, Closed, closed_rest, reason_of, token

RECORDED: Final[dict[str, dict[str, str]]] = json.loads(
    (Path(__file__).parents[1] / "golden/security/rest_of_pulsar_4_2_4.json").read_text()
)
REVEALING: Final = {"nowhere"}
"""In an unknown tenant, Pulsar answers 404 to every role. Here only super users learn that it does
not exist; all others get the refusal of an existing tenant."""
UNSERVED: Final = {
    "DELETE /admin/v2/persistent/t1/n1/a/policies",  # not served here
    "DELETE /admin/v2/namespaces/t1/n1/permissions/subscription/s/r",  # not served by Pulsar
}
BODIES: Final = {
    "POST /admin/v2/namespaces/grantPermissionsOnTopics": (
        b'[{"topic": "persistent://t1/n1/a", "role": "zz", "actions": ["produce"]}]'
    ),
}
"""Only the body names the topics, so the right depends on it."""


def outcomes(request: str) -> list[tuple[str, int, str]]:
    """Returns each role with the status that Pulsar answered, and the text of a refusal."""
    found = []
    for outcome, roles in RECORDED[request].items():
        status, _, text = outcome.partition(" ")
        found += [(role, int(status), text) for role in roles.split(" ")]
    return found


def expected(role: str, status: int, text: str) -> tuple[int, str] | None:
    """Returns the refusal that the role must get; None if it must be admitted."""
    if role in ("-", "wrong"):
        text = "Authentication required"  # Pulsar omits the text for PUT and DELETE
    return (status, text.replace("[ROLE]", f"[{role}]")) if status in (401, 403) else None


async def answer(closed: Closed, request: str, role: str) -> tuple[int, str] | None:
    """Returns the refusal that the role gets; None if the guard admits it."""
    method, path = request.replace("BROKER", closed.service.broker_id).split(" ")
    credentials = {"-": None, "wrong": WRONG}.get(role, token(role))
    # A body that no handler can read: a refused request is refused without reading it.
    body = BODIES.get(request, b"{" if method in ("POST", "PUT") else b"")
    response = await closed.send(method, path, credentials, body)
    if response.status_code not in (401, 403):
        return None
    return response.status_code, reason_of(response).replace(closed.service.broker_id, "BROKER")


def is_comparable(request: str) -> bool:
    return request not in UNSERVED and not REVEALING & set(request.split("/"))


@pytest.fixture
async def closed():
    async with closed_rest() as broker:
        yield broker


@pytest.mark.parametrize(
    "request_line", [request for request in RECORDED if is_comparable(request)]
)
async def test_refused_as_by_pulsar(closed: Closed, request_line: str) -> None:
    actual, of_pulsar = {}, {}
    # Those that are refused come first: the others may delete what they were refused.
    for role, status, text in sorted(outcomes(request_line), key=lambda each: -each[1]):
        of_pulsar[role] = expected(role, status, text)
        actual[role] = await answer(closed, request_line, role)
    assert actual == of_pulsar


@pytest.mark.parametrize(
    "request_line", [request for request in RECORDED if REVEALING & set(request.split("/"))]
)
async def test_an_unknown_tenant_looks_like_one_of_others(
    closed: Closed, request_line: str
) -> None:
    known = request_line.replace("nowhere", "t2" if "/t1/" not in request_line else "n1")
    for role in ("nobody", "prod", "cons", "topicprod", "ta"):
        if role != "nobody" and "/t1/" in request_line:
            continue
        unknown = await answer(closed, request_line, role)
        assert unknown is not None
        existing = await answer(closed, known, role)
        assert existing is not None
        assert unknown[0] == existing[0]
        assert unknown[1] == existing[1].replace("[t2", "[nowhere").replace(
            "://t2/", "://nowhere/"
        ).replace("t1/n1", "t1/nowhere")
