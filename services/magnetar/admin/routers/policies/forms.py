"""Values of policies over REST: parsed as Jackson does, checked, and shown.

A value is JSON. As Pulsar's clients require, numbers and booleans may be texts, and a null field
counts as missing. An invalid value is refused with the policy's status and a reason that begins as
Pulsar's; no part of it is stored.
"""

import re
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from magnetar.admin.http import bodies, unknown_fields
from magnetar.admin.routers.policies import offload_form
from magnetar.broker.catalog.resources import Document
from magnetar.core.errors import NotFound, PreconditionFailed
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
"""The entry of the backlog quota if a request has no `backlogQuotaType`."""
EMPTY: Final = "The request entity cannot be empty."

_WHOLE = re.compile(r"-?\d{1,19}")
_BOOLEANS: Final = {"true": True, "false": False}


def key_of(request: Request, policy: Policy, rest: Rest) -> str:
    """Returns the key of the entry that the request is about; empty for other policies."""
    if not rest.keyed_by or not isinstance(policy.type, MapOf):
        return ""
    key = request.query_params.get(rest.keyed_by) or KEY_DEFAULT
    try:
        return str(policy.type.key.check(key, rest.keyed_by))
    except PolicyInvalid as error:
        raise NotFound(str(error)) from None


async def read(request: Request, policy: Policy, rest: Rest) -> object:
    """Returns the checked value, or entry, of the request; None if the request removes it."""
    value = await _requested(request, policy, rest)
    if value is None or value == "":
        if _empty_removes(policy, rest):
            return None
        raise HTTPException(MALFORMED, EMPTY)
    kind = policy.type
    if rest.keyed_by and isinstance(kind, MapOf):
        kind = kind.value
    if policy is OFFLOAD:
        value = offload_form.stored(value)
    return checked(policy, kind, coerced(kind, value), rest.path, rest.invalid)


def checked(policy: Policy, kind: Type, value: object, where: str, refusal: str = "") -> object:
    """Returns the value to store; raises PreconditionFailed with Pulsar's text.

    `refusal` is Pulsar's whole text for a value out of range, if Pulsar has one.
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
        raise PreconditionFailed(text, http_status=status) from None


def coerced(kind: Type, value: object) -> object:
    """Converts texts to numbers and booleans if the type requires it; raises 400 for a field that
    the type does not have."""
    if isinstance(value, str):
        return _from_text(kind, value)
    if isinstance(kind, Record) and isinstance(value, dict):
        types = {field.name: field.type for field in kind.fields}
        types |= {field.alias: field.type for field in kind.fields if field.alias}
        # The check refuses these by name, so they must reach it.
        types |= {name: Text() for name, _ in kind.refused}
        given = {name: entry for name, entry in value.items() if entry is not None}
        for name in given.keys() - types.keys():
            unknown_fields.refuse(name, types)
        return {name: coerced(types[name], entry) for name, entry in given.items()}
    if isinstance(kind, MapOf) and isinstance(value, dict):
        return {
            name: coerced(kind.value, entry) for name, entry in value.items() if entry is not None
        }
    if isinstance(kind, ListOf) and isinstance(value, list):
        return _unique([coerced(kind.item, item) for item in value])
    if isinstance(kind, Boolean) and value in (0, 1):
        return bool(value)
    if isinstance(kind, Integer) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def shown(policy: Policy, value: Any) -> object:
    """Returns the value as Pulsar shows it, which repeats some fields under other names.

    These are a quota's size, under its old name, and a bucket, under its driver's name.
    """
    if policy is BACKLOG_QUOTA and value is not None:
        return with_old_names(value)
    if policy is OFFLOAD and value is not None:
        return offload_form.shown(value)
    return value


def with_old_names(quotas: Document) -> Document:
    """Adds `limit`, the name of `limitSize` in clients before 2.8."""
    return {key: {"limit": quota.get("limitSize", -1), **quota} for key, quota in quotas.items()}


async def _requested(request: Request, policy: Policy, rest: Rest) -> object:
    body = await bodies.read(request)
    if rest.implied is not None:
        return rest.implied
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


def _unique(items: list[object]) -> list[object]:
    """Removes duplicates: lists of policies are sets in Pulsar."""
    return [item for at, item in enumerate(items) if item not in items[:at]]


def _empty_removes(policy: Policy, rest: Rest) -> bool:
    if rest.empty_removes is not None:
        return rest.empty_removes
    return isinstance(policy.type, Record | Choice)


def _from_text(kind: Type, text: str) -> object:
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
