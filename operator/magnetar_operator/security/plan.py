"""Plans what to issue for a cluster: its authority, certificates, token key and tokens. Pure.

A plan has at most one step of each rotation; the next plan, of the Secrets as they are then, has
the next one. A stored Secret that cannot be read is a problem and is never overwritten: it may be
brought along, or damaged, and its replacement would cut off every peer that trusts it.

No text of a plan has the content of a Secret.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.base import PlanStep
from magnetar_operator.security import wanted as names
from magnetar_operator.security import x509
from magnetar_operator.security.rotation import Pace, Signer, Step, decide
from magnetar_operator.security.stored import (
    StoredAuthority,
    annotation,
    authority_of,
    data_of,
    pair_of,
    time_of,
)
from magnetar_operator.security.token_keys import StoredKeys, keys_of, token_state
from magnetar_operator.security.wanted import Leaf, Lifetime, Wanted

NO_RETENTION: Final = datetime.timedelta()

What = Literal["authority", "certificate", "trust", "token key", "token"]


@dataclass(frozen=True, slots=True)
class Issue:
    """Writes one Secret."""

    what: What
    secret: str
    text: str
    step: Step = Step.CREATE
    """The step of the rotation of an authority or a token key."""
    before: Object | None = field(default=None, repr=False)
    """The Secret as observed."""
    leaf: Leaf | None = None
    role: str = ""

    @property
    def plan_step(self) -> PlanStep:
        """The entry of `status.plan`."""
        return PlanStep(action="issue", target=f"Secret {self.secret}", text=self.text)


@dataclass(frozen=True, slots=True)
class Issuance:
    """The actions for the Secrets of a cluster."""

    actions: tuple[Issue, ...] = ()
    problems: tuple[str, ...] = ()
    requeue_s: float | None = None
    """Seconds until the next step of a rotation may be due."""
    rotating: tuple[str, ...] = ()
    """Sentences about rotations in progress."""


def plan(
    wanted: Wanted,
    secrets: Mapping[str, Object | None],
    now: datetime.datetime,
    *,
    deployed: bool = True,
) -> Issuance:
    """Plans the Secrets of a cluster.

    A name of `wanted.secrets` that `secrets` lacks does not exist. `deployed`: every process that
    reads its trust only at its start has started with the present one.
    """
    planner = _Planner(wanted, secrets, now)
    planner.certificates(deployed=deployed)
    planner.tokens()
    return planner.issuance()


class _Planner:
    def __init__(
        self, wanted: Wanted, secrets: Mapping[str, Object | None], now: datetime.datetime
    ) -> None:
        self._wanted = wanted
        self._secrets = {name: secrets.get(name) for name in wanted.secrets}
        self._now = now
        self._actions: list[Issue] = []
        self._problems: list[str] = []
        self._rotating: list[str] = []
        self._requeue_s: float | None = None

    def issuance(self) -> Issuance:
        return Issuance(
            tuple(self._actions), tuple(self._problems), self._requeue_s, tuple(self._rotating)
        )

    def certificates(self, *, deployed: bool) -> None:
        """Plans a step of the authority, and the certificates that it must issue."""
        certificates = self._wanted.certificates
        if certificates is None:
            return
        name = certificates.authority
        stored = authority_of(self._secrets[name])
        if stored is not None and not x509.is_pair(stored.current):
            self._unreadable(name, "an authority's certificate and key")
            return
        followed = stored is not None and all(
            x509.is_signed_by(
                pair_of(self._secrets[leaf.secret]).certificate, stored.current.certificate
            )
            for leaf in certificates.leaves
        )
        signer = self._authority_state(name, stored, certificates.authority_lifetime)
        pace = Pace(certificates.settle, NO_RETENTION)
        decision = decide(signer, pace, self._now, deployed=deployed, followed=followed)
        self._requeue(decision.requeue_s)
        if decision.step is not Step.NONE:
            text = _AUTHORITY_TEXTS[decision.step]
            before = self._secrets[name]
            self._actions.append(Issue("authority", name, text, decision.step, before))
        self._describe(signer, "authority")
        if stored is not None and decision.step is Step.NONE:
            for leaf in certificates.leaves:
                self._leaf(leaf, stored, certificates.lifetime)

    def _authority_state(
        self, name: str, stored: StoredAuthority | None, lifetime: Lifetime
    ) -> Signer:
        if stored is None:
            return Signer()
        secret = self._secrets[name]
        expires = x509.expiry(stored.current.certificate)
        assert expires is not None  # noqa: S101  it is a pair
        return Signer(
            exists=True,
            due=self._is_due(secret, expires, lifetime),
            expired=expires <= self._now,
            announced_at=time_of(secret, names.ANNOUNCED_AT) if stored.upcoming else None,
            promoted_at=time_of(secret, names.PROMOTED_AT) if stored.previous else None,
        )

    def _leaf(self, leaf: Leaf, authority: StoredAuthority, lifetime: Lifetime) -> None:
        """Plans a certificate if it is missing, wrong or old, else its trust if that changed."""
        secret = self._secrets[leaf.secret]
        pair = pair_of(secret)
        expires = x509.expiry(pair.certificate)
        reason = ""
        if secret is None:
            reason = "it is created"
        elif expires is None or not x509.is_pair(pair):
            reason = "it has no certificate with its key"
        elif not x509.is_for(pair.certificate, leaf.names):
            reason = "the names of the component have changed"
        elif not x509.is_signed_by(pair.certificate, authority.current.certificate):
            reason = "another authority signed it"
        elif self._is_due(secret, expires, lifetime):
            reason = "it expires soon, or its rotation was requested"
        if reason:
            text = f"certificate {leaf.names.common_name}: {reason}"
            self._actions.append(Issue("certificate", leaf.secret, text, before=secret, leaf=leaf))
        elif data_of(secret, names.TRUST) != authority.bundle:
            text = f"trusted authorities of {leaf.names.common_name} are updated"
            self._actions.append(Issue("trust", leaf.secret, text, before=secret, leaf=leaf))

    def tokens(self) -> None:
        """Plans a step of the token key, and the tokens that it must sign."""
        tokens = self._wanted.tokens
        if tokens is None:
            return
        secret = self._secrets[tokens.key]
        stored = keys_of(secret, symmetric=tokens.symmetric)
        if secret is not None and stored is None:
            self._unreadable(tokens.key, "a token key")
            return
        states = {
            role: token_state(data_of(self._secrets[name], names.TOKEN), stored)
            for role, name in tokens.roles.items()
        }
        followed = all(state is not None and state.is_current for state in states.values())
        signer = Signer(
            exists=stored is not None,
            due=bool(annotation(secret, names.ROTATE)),
            announced_at=time_of(secret, names.ANNOUNCED_AT),
            promoted_at=time_of(secret, names.PROMOTED_AT),
        )
        pace = Pace(tokens.settle, tokens.lifetime.duration)
        decision = decide(signer, pace, self._now, deployed=True, followed=followed)
        self._requeue(decision.requeue_s)
        if decision.step is not Step.NONE:
            text = _KEY_TEXTS[decision.step]
            self._actions.append(Issue("token key", tokens.key, text, decision.step, secret))
        elif stored is not None and not stored.trusted:
            text = "the key set of a key that was brought along is added"
            self._actions.append(Issue("token key", tokens.key, text, Step.NONE, secret))
        self._describe(signer, "token key")
        if stored is not None and decision.step is Step.NONE:
            for role, name in tokens.roles.items():
                self._token(role, name, stored, tokens.lifetime)

    def _token(self, role: str, name: str, keys: StoredKeys, lifetime: Lifetime) -> None:
        secret = self._secrets[name]
        state = token_state(data_of(secret, names.TOKEN), keys)
        reason = ""
        if secret is None:
            reason = "it is created"
        elif state is None:
            reason = "no trusted key signed it"
        elif state.role != role:
            reason = "it is another role's"
        elif not state.is_current:
            reason = "another key signed it"
        elif self._is_due(secret, state.expires_at, lifetime):
            reason = "it expires soon, or its rotation was requested"
        if reason:
            text = f"token of role {role}: {reason}"
            self._actions.append(Issue("token", name, text, before=secret, role=role))

    def _is_due(
        self, secret: Object | None, expires: datetime.datetime, lifetime: Lifetime
    ) -> bool:
        if annotation(secret, names.ROTATE):
            return True
        return expires - self._now <= lifetime.renew_before

    def _describe(self, signer: Signer, what: str) -> None:
        if signer.announced_at is not None:
            self._rotating.append(f"the next {what} is trusted, and signs once every peer knows it")
        elif signer.promoted_at is not None:
            self._rotating.append(f"the previous {what} is still trusted")

    def _unreadable(self, name: str, what: str) -> None:
        self._problems.append(
            f"Secret {name} does not have {what}: correct it, or delete it to have it issued anew"
        )

    def _requeue(self, after_s: float | None) -> None:
        if after_s is not None:
            self._requeue_s = after_s if self._requeue_s is None else min(self._requeue_s, after_s)


_AUTHORITY_TEXTS: Final = {
    Step.CREATE: "the authority is created",
    Step.ANNOUNCE: "the next authority is created and trusted; it signs nothing yet",
    Step.PROMOTE: "the next authority signs from now on; the previous one is still trusted",
    Step.RETIRE: "the previous authority is no longer trusted",
}
_KEY_TEXTS: Final = {
    Step.CREATE: "the token key is created",
    Step.ANNOUNCE: "the next token key is created and trusted; it signs nothing yet",
    Step.PROMOTE: "the next token key signs from now on; the previous one is still trusted",
    Step.RETIRE: "the previous token key is no longer trusted",
}
