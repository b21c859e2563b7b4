"""Grants in a namespace's document, `auth_policies`: checked before they are stored.

A grant that authorization cannot read would take the namespace from every role, and one of an
unknown action would grant nothing.
"""

from typing import Final

import msgspec
from starlette.exceptions import HTTPException

from magnetar.admin.http import unknown_fields
from magnetar.broker.catalog.namespace_policies import AUTH
from magnetar.broker.catalog.resources import Document
from magnetar.broker.security.grants import Action

ACTIONS: Final = tuple(sorted(Action))

Roles = dict[str, list[str]]


class AuthDocument(msgspec.Struct):
    """The grants, by the names of Pulsar's AuthPolicies."""

    namespace_auth: Roles = {}
    destination_auth: dict[str, Roles] = {}
    subscription_auth_roles: dict[str, list[str]] = {}


def checked_auth(given: Document) -> Document:
    """Returns the grants with each part; raises 400 for an unknown field, form or action."""
    parts = {name: value for name, value in given.items() if value is not None}
    for name in parts.keys() - set(AuthDocument.__struct_fields__):
        unknown_fields.refuse(name, AuthDocument.__struct_fields__)
    try:
        auth = msgspec.convert(parts, AuthDocument)
    except msgspec.ValidationError as error:
        raise HTTPException(400, f"{AUTH}: {error}") from error
    for roles in (auth.namespace_auth, *auth.destination_auth.values()):
        roles |= {role: checked_actions(actions) for role, actions in roles.items()}
    document: Document = msgspec.to_builtins(auth)
    return document


def checked_actions(actions: list[str] | None) -> list[str]:
    """Returns the actions in order, without repetition; raises 400 for one that does not exist."""
    if actions is None:
        raise HTTPException(400, "Actions should not be null")
    for action in actions:
        if action not in ACTIONS:
            raise HTTPException(400, f"No such action: {action}; there are {', '.join(ACTIONS)}")
    return sorted(set(actions))
