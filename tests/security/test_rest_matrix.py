"""Every route of the REST for every kind of client, from the table of rights.

`ALLOWED` lists, by hand, the roles that have each right; the table lists the right that each route
needs. A route that needs too little fails here, and so does a right of too many roles. Without an
entry for each route, the application does not start (`table.check`).
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import pytest

from magnetar.admin.rights import table
from magnetar.admin.rights.right import AllOf, ByBody, ByPolicy, Public, Right

from .rest import SUPER, WRONG, Closed, closed_rest, expired, token

CLIENTS: Final = {"prod", "cons", "topicprod"}
ALL: Final = {"nobody", "fn", "tb", "ta", *CLIENTS}
"""The roles beside the super user: `ta` is the admin of the tenant, `tb` that of another."""
ADMIN: Final = {"ta"}
CONSUMER: Final = {"cons", "ta"}

ALLOWED: Final[dict[str, set[str]]] = {
    "no credentials": ALL,
    "any role": ALL,
    "super user": set(),
    "tenant admin": ADMIN,
    "topic: LOOKUP": CLIENTS | ADMIN,
    "topic: GET_STATS": CLIENTS | ADMIN,
    "topic: GET_METADATA": CLIENTS | ADMIN,
    "topic: PRODUCE": {"prod", "topicprod", "ta"},
    "topic: CONSUME": CONSUMER,
    "PRODUCE of the topics that messages are moved to": ALL,  # test_redrive_rights
    "topic: SUBSCRIBE": CONSUMER,
    "topic: UNSUBSCRIBE": CONSUMER,
    "topic: GET_SUBSCRIPTIONS": CONSUMER,
    "topic: SKIP": CONSUMER,
    "topic: EXPIRE_MESSAGES": CONSUMER,
    "topic: TRIM_TOPIC": ADMIN,
    "topic: GET_REPLICATED_SUBSCRIPTION_STATUS": CONSUMER,
    "topic: SET_REPLICATED_SUBSCRIPTION_STATUS": CONSUMER,
    "topic: EXPIRE_MESSAGES, with all subscriptions": CONSUMER,
    "topic: PEEK_MESSAGES": CONSUMER,
    "topic: RESET_CURSOR": CONSUMER,
    "topic: GET_BACKLOG_SIZE": CONSUMER,
    "topic: UNLOAD": ADMIN,
    "topic: TERMINATE": ADMIN,
    "topic: COMPACT": ADMIN,
    "topic: OFFLOAD": ADMIN,
    "topic: UPDATE_METADATA": ADMIN,
    "topic: DELETE_METADATA": ADMIN,
    "namespace: GET_TOPICS": {"prod", "cons", "ta"},
    "namespace: GET_BUNDLE": {"prod", "cons", "ta"},
    "namespace: CLEAR_BACKLOG, with the subscription or with all of them": CONSUMER,
    "namespace: UNSUBSCRIBE, with the subscription or with all of them": CONSUMER,
    "namespace: DELETE_BUNDLE": ADMIN,
    "namespace: CREATE_TOPIC": ADMIN,
    "namespace: DELETE_TOPIC": ADMIN,
    "namespace: GRANT_PERMISSION": ADMIN,
    "namespace: GET_PERMISSION": ADMIN,
    "namespace: REVOKE_PERMISSION": ADMIN,
    "tenant: GET_TENANT": ADMIN,
    "tenant: LIST_NAMESPACES": ADMIN,
    "tenant: CREATE_NAMESPACE": ADMIN,
    "tenant: DELETE_NAMESPACE": ADMIN,
    "tenant: UPDATE_TENANT": set(),
    "tenant: DELETE_TENANT": set(),
}
IN_PATHS: Final = {
    "domain": "persistent",
    "tenant": "t1",
    "namespace": "n1",
    "topic": "a",
    "subscription": "s",
    "bundle": "0x00000000_0xffffffff",
    "choice": "LARGEST",
    "cluster": "standalone",
    "role": "r",
    "broker": "127.0.0.1:8080",
    "bookie": "b1",
    "key": "k",
    "value": "v",
    "timestamp": "1",
    "count": "1",
    "seconds": "1",
    "position": "1",
    "ledger": "1",
    "entry": "0",
    "version": "0",
    "setting": "superUserRoles",
    "most": "0",
    "least": "0",
    "timeout": "1",
    "coordinator": "0",
    "allocator": "default",
    "failure_domain": "d1",
    "isolation_policy": "p1",
    "resource_group": "g1",
}
REFUSAL: Final = re.compile(
    r"Unauthorized to validate|This operation requires super-user|"
    r"Don't have permission to administrate|Authentication required"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and the roles that may send it."""

    method: str
    path: str
    roles: frozenset[str]
    public: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def allowed(right: Right) -> set[str]:
    """Returns the roles beside the super user that have the right."""
    if isinstance(right, AllOf):
        return set.intersection(*map(allowed, right.rights))
    text = right.text
    if text.startswith("policy "):
        return ADMIN
    if text.startswith("super user: "):
        return set()
    return ALLOWED[text]


def filled(path: str, policy: str = "") -> str:
    """Returns a path of the template."""
    values = {**IN_PATHS, "policy": policy}
    return re.sub(r"\{(\w+):\w+\}", lambda match: values[match[1]], path)


def cases() -> list[Case]:
    """Returns a case of each route, and of each policy where a route serves many."""
    found = []
    for (method, path), right in table.RIGHTS.items():
        if isinstance(right, ByBody):
            continue  # test_rest_guard.test_grants_on_several_topics
        if isinstance(right, ByPolicy):
            found += [
                Case(method, filled(path, policy), frozenset(allowed(of_policy)))
                for policy, of_policy in right.rights.items()
                if policy != "bookieAffinity"
            ]
            continue
        policy = "bookieAffinity" if "/persistence/" in path else ""
        roles = frozenset(allowed(right))
        found.append(Case(method, filled(path, policy), roles, isinstance(right, Public)))
    return found


@pytest.fixture
async def closed() -> AsyncIterator[Closed]:
    async with closed_rest() as broker:
        yield broker


async def is_refused(closed: Closed, case: Case, credentials: str | None) -> bool:
    """Whether the guard refuses the request; its body is one that no handler can read."""
    body = b"" if case.method in ("GET", "DELETE") else b"{"
    response = await closed.send(case.method, case.path, credentials, body)
    return response.status_code in (401, 403) and bool(REFUSAL.search(response.text))


@pytest.mark.parametrize("case", cases(), ids=str)
async def test_each_route_for_each_kind_of_client(closed: Closed, case: Case) -> None:
    for credentials in (None, WRONG, expired(SUPER), expired("ta")):
        assert await is_refused(closed, case, credentials) is not case.public
    refused = sorted(ALL - case.roles)
    admitted = [*sorted(case.roles), SUPER]
    actual = {role: await is_refused(closed, case, token(role)) for role in [*refused, *admitted]}
    assert actual == dict.fromkeys(refused, True) | dict.fromkeys(admitted, False)


def test_every_right_of_the_table_is_judged_and_none_is_missing() -> None:
    texts = {right.text for right in table.RIGHTS.values() if not isinstance(right, ByPolicy)}
    assert ALLOWED.keys() <= texts | {part for text in texts for part in text.split(" and ")}
    assert len(cases()) > len(table.RIGHTS)


def test_a_route_without_an_entry_prevents_the_start() -> None:
    table.check(table.RIGHTS)
    with pytest.raises(LookupError, match="without an entry"):
        table.check([*table.RIGHTS, ("GET", "/admin/v2/new")])
    with pytest.raises(LookupError, match="without a route"):
        table.check(route for route in table.RIGHTS if route != ("GET", "/readyz"))
