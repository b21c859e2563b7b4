"""Creates keys, certificates and tokens for the actions of a plan, as contents of Secrets.

CPU only, and for RSA keys much of it: callers run it in a thread.
"""

import base64
import datetime
from collections.abc import Mapping

from magnetar_operator.kube.kinds import SECRET, Object
from magnetar_operator.security import wanted as names
from magnetar_operator.security import x509
from magnetar_operator.security.plan import Issue
from magnetar_operator.security.rotation import Step
from magnetar_operator.security.stored import StoredAuthority, authority_of, data_of, pair_of
from magnetar_operator.security.token_keys import TokenKey, create_key, key_set, keys_of
from magnetar_operator.security.wanted import Certificates, Tokens, Wanted

Contents = dict[str, bytes]
Annotations = dict[str, str | None]
"""None removes an annotation."""


def manifest(
    action: Issue, wanted: Wanted, secrets: Mapping[str, Object | None], now: datetime.datetime
) -> Object:
    """The Secret that carries out an action, to be created, or to replace `action.before`."""
    contents, annotations = _contents(action, wanted, secrets, now)
    before = action.before or {}
    metadata = dict(before.get("metadata") or {})
    kept = dict(metadata.get("annotations") or {})
    for name, value in annotations.items():
        kept.pop(name, None)
        if value is not None:
            kept[name] = value
    built: Object = {
        "name": action.secret,
        "namespace": wanted.namespace,
        "labels": {**(metadata.get("labels") or {}), **wanted.labels},
        "annotations": kept,
    }
    if wanted.owner is not None:
        built["ownerReferences"] = [dict(wanted.owner)]
    if "resourceVersion" in metadata:
        built["resourceVersion"] = metadata["resourceVersion"]
    encoded = {key: base64.b64encode(value).decode() for key, value in contents.items() if value}
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "type": before.get("type") or "Opaque",
        "metadata": built,
        "data": encoded,
    }


def _contents(
    action: Issue, wanted: Wanted, secrets: Mapping[str, Object | None], now: datetime.datetime
) -> tuple[Contents, Annotations]:
    certificates, tokens = wanted.certificates, wanted.tokens
    if action.what in ("authority", "certificate", "trust"):
        assert certificates is not None  # noqa: S101  the plan is of these certificates
        stored = authority_of(secrets[certificates.authority])
        if action.what == "authority":
            return _authority(action.step, wanted.cluster, certificates, stored, now)
        assert stored is not None and action.leaf is not None  # noqa: S101, PT018
        return _leaf(action, certificates, stored, now)
    assert tokens is not None  # noqa: S101  the plan is of these tokens
    if action.what == "token key":
        return _token_key(action.step, tokens, secrets[tokens.key], now)
    keys = keys_of(secrets[tokens.key], symmetric=tokens.symmetric)
    assert keys is not None  # noqa: S101  tokens are planned once there is a key
    token = keys.current.sign(action.role, now, tokens.lifetime.duration)
    return {names.TOKEN: token.reveal()}, {names.ROTATE: None}


def _authority(
    step: Step,
    cluster: str,
    wanted: Certificates,
    stored: StoredAuthority | None,
    now: datetime.datetime,
) -> tuple[Contents, Annotations]:
    at = now.isoformat(timespec="seconds")
    lifetime = wanted.authority_lifetime.duration
    if step in (Step.CREATE, Step.ANNOUNCE):
        created = x509.create_authority(cluster, wanted.key_kind, lifetime, now)
        if stored is None:
            return _authority_contents(StoredAuthority(created, None, b"")), {}
        announced = StoredAuthority(stored.current, created, stored.previous)
        return _authority_contents(announced), {names.ANNOUNCED_AT: at, names.ROTATE: None}
    assert stored is not None  # noqa: S101  only the first step has no authority
    if step is Step.PROMOTE:
        assert stored.upcoming is not None  # noqa: S101  it was announced
        promoted = StoredAuthority(
            stored.upcoming, None, stored.current.certificate + stored.previous
        )
        return _authority_contents(promoted), {names.ANNOUNCED_AT: None, names.PROMOTED_AT: at}
    retired = StoredAuthority(stored.current, stored.upcoming, b"")
    return _authority_contents(retired), {names.PROMOTED_AT: None}


def _authority_contents(authority: StoredAuthority) -> Contents:
    contents = {
        names.CERTIFICATE: authority.current.certificate,
        names.KEY: authority.current.key.reveal(),
        names.TRUST: authority.bundle,
        names.PREVIOUS_CERTIFICATE: authority.previous,
    }
    if authority.upcoming is not None:
        contents[names.NEXT_CERTIFICATE] = authority.upcoming.certificate
        contents[names.NEXT_KEY] = authority.upcoming.key.reveal()
    return contents


def _leaf(
    action: Issue, wanted: Certificates, authority: StoredAuthority, now: datetime.datetime
) -> tuple[Contents, Annotations]:
    assert action.leaf is not None  # noqa: S101  checked by the caller
    pair = pair_of(action.before)
    if action.what == "certificate":
        pair = x509.issue(
            authority.current, action.leaf.names, wanted.key_kind, wanted.lifetime.duration, now
        )
    contents = {
        names.CERTIFICATE: pair.certificate,
        names.KEY: pair.key.reveal(),
        names.TRUST: authority.bundle,
    }
    return contents, {names.ROTATE: None} if action.what == "certificate" else {}


def _token_key(
    step: Step, wanted: Tokens, secret: Object | None, now: datetime.datetime
) -> tuple[Contents, Annotations]:
    at = now.isoformat(timespec="seconds")
    stored = keys_of(secret, symmetric=wanted.symmetric)
    if stored is None:
        return _key_contents(create_key(symmetric=wanted.symmetric), None, []), {}
    if step is Step.ANNOUNCE:
        upcoming = create_key(symmetric=wanted.symmetric)
        contents = _key_contents(stored.current, upcoming, stored.predecessors())
        return contents, {names.ANNOUNCED_AT: at, names.ROTATE: None}
    if step is Step.PROMOTE:
        assert stored.upcoming is not None  # noqa: S101  it was announced
        previous = [stored.current.document(), *stored.predecessors()]
        contents = _key_contents(stored.upcoming, None, previous)
        return contents, {names.ANNOUNCED_AT: None, names.PROMOTED_AT: at}
    # A key that was brought along gets its key set; a retired one leaves it.
    upcoming_key = stored.upcoming if step is not Step.RETIRE else None
    return _key_contents(stored.current, upcoming_key, []), {names.PROMOTED_AT: None}


def _key_contents(
    current: TokenKey, upcoming: TokenKey | None, previous: list[dict[str, object]]
) -> Contents:
    members = [key.document() for key in (current, upcoming) if key is not None]
    contents = {
        names.SECRET_KEY if current.symmetric else names.PRIVATE_KEY: current.material.reveal(),
        names.PUBLIC_KEY: current.public,
        names.KEY_SET: key_set([*members, *previous]),
    }
    if upcoming is not None:
        contents[names.NEXT_TOKEN_KEY] = upcoming.material.reveal()
    return contents


def trust_of(wanted: Wanted, secrets: Mapping[str, Object | None]) -> bytes:
    """The bundle of all trusted authorities; empty if there is none yet."""
    if wanted.certificates is None:
        return b""
    return data_of(secrets.get(wanted.certificates.authority), names.TRUST)
