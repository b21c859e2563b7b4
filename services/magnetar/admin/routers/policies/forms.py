"""Values of policies as they come and go over REST: read as Jackson reads them, checked, shown.

A value is JSON. As Pulsar's clients send them, numbers and booleans may be texts, and fields that
are null count as left out. What is not valid is refused with the policy's status and a reason that
begins as Pulsar's; nothing of it is stored.
"""

import re
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from magnetar.admin import bodies
from magnetar.admin.routers.policies import offload_form
from magnetar.admin.routers.policies.refusal import InvalidPolicy
from magnetar.broker.resources import Document
from magnetar.core.errors import NotFound
from magnetar.policies.lifecycle import BACKLOG_QUOTA, OFFLOAD
from magnetar.policies.policy import Policy, Rest
from magnetar.policies.types import (
    Boolean,
    Choice,
    Integer,
    ListOf,
    MapOf,
    Number,
    PolicyInvalid,
    PolicyMalformed,
    Record,
    Text,
    Type,
)

MALFORMED: Final = 400
KEY_DEFAULT: Final = "destination_storage"
"""Where no `backlogQuotaType` is given."""
EMPTY: Final = "The request entity cannot be empty."

_WHOLE = re.compile(r"-?\d{1,19}")
_BOOLEANS: Final = {"true": True, "false": False}


def key_of(request: Request, policy: Policy, rest: Rest) -> str:
    """Which entry of a policy that is set entry by entry; empty for all others."""
    if not rest.keyed_by or not isinstance(policy.type, MapOf):
        return ""
    key = request.query_params.get(rest.keyed_by) or KEY_DEFAULT
    try:
        return str(policy.type.key.check(key, rest.keyed_by))
    except PolicyInvalid as error:
        raise NotFound(str(error)) from None


async def read(request: Request, policy: Policy, rest: Rest) -> Any:
    """The checked value of the request, of one entry where it is keyed; None: it is to go."""
    given = await _given(request, policy, rest)
    if given is None or given == "":
        if _empty_removes(policy, rest):
            return None
        raise HTTPException(MALFORMED, EMPTY)
    kind = policy.type
    if rest.keyed_by and isinstance(kind, MapOf):
        kind = kind.value
    if policy is OFFLOAD:
        given = offload_form.taken(given)
    return checked(policy, kind, coerced(kind, given), rest.path, rest.invalid)


def checked(policy: Policy, kind: Type, value: object, where: str, refusal: str = "") -> Any:
    """The value as it is stored; raises InvalidPolicy in Pulsar's words.

    `refusal` is Pulsar's whole text for a value out of range, where it has one.
    """
    try:
        return kind.check(value, where)
    except PolicyInvalid as error:
        status = MALFORMED if isinstance(error, PolicyMalformed) else policy.invalid_status
        named = error.where.removeprefix(where).lstrip(".")
        if refusal and status != MALFORMED:
            text = refusal
        elif error.refusal:
            text = error.refusal
        elif not policy.invalid:
            text = f"{error.where} {error.text}" if error.where else error.text
        elif error.text.startswith(policy.invalid):
            text = error.text
        else:
            text = f"{policy.invalid}: {named} {error.text}".replace(":  ", ": ")
        raise InvalidPolicy(text, http_status=status) from None


def coerced(kind: Type, value: Any) -> Any:
    """The value with its texts made numbers and booleans where the type has these."""
    if isinstance(value, str):
        return _from_text(kind, value)
    if isinstance(kind, Record) and isinstance(value, dict):
        types = {field.name: field.type for field in kind.fields}
        types |= {field.alias: field.type for field in kind.fields if field.alias}
        return {
            name: coerced(types[name], one)
            for name, one in value.items()
            if one is not None and name in types
        }
    if isinstance(kind, MapOf) and isinstance(value, dict):
        return {name: coerced(kind.value, one) for name, one in value.items() if one is not None}
    if isinstance(kind, ListOf) and isinstance(value, list):
        return _unique([coerced(kind.item, one) for one in value])
    if isinstance(kind, Boolean) and value in (0, 1):
        return bool(value)
    if isinstance(kind, Integer) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def shown(policy: Policy, value: Any) -> Any:
    """The value as Pulsar answers it: a quota's size also under its old name, a bucket also under
    that of its driver."""
    if policy is BACKLOG_QUOTA and value is not None:
        return with_old_names(value)
    if policy is OFFLOAD and value is not None:
        return offload_form.shown(value)
    return value


def with_old_names(quotas: Document) -> Document:
    """`limit` beside `limitSize`, as clients before 2.8 know it."""
    return {key: {"limit": quota.get("limitSize", -1), **quota} for key, quota in quotas.items()}


async def _given(request: Request, policy: Policy, rest: Rest) -> Any:
    body = await bodies.read(request)
    if rest.query and not body:
        return request.query_params.get(rest.query)
    if not body.strip():
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(policy.type, Text):  # Pulsar's clients send these without quotes
            return body.decode("utf-8", "replace").strip()
        raise HTTPException(MALFORMED, f"The body is not valid JSON: {error}") from error


def _unique(items: list[Any]) -> list[Any]:
    """Lists of policies are sets to Pulsar: who names an item twice means it once."""
    return [item for at, item in enumerate(items) if item not in items[:at]]


def _empty_removes(policy: Policy, rest: Rest) -> bool:
    if rest.empty_removes is not None:
        return rest.empty_removes
    return isinstance(policy.type, Record | Choice)


def _from_text(kind: Type, text: str) -> Any:
    stripped = text.strip()
    if isinstance(kind, Integer) and _WHOLE.fullmatch(stripped):
        return int(stripped)
    if isinstance(kind, Boolean):
        return _BOOLEANS.get(stripped.lower(), text)
    if isinstance(kind, Number):
        try:
            return float(stripped)
        except ValueError:
            return text
    return text
