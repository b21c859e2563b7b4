"""How log lines show roles, which may be names of people: unchanged, hashed, or not at all.

The modes and their output are those of Pulsar's `authenticationRoleLoggingAnonymizer`. A line's
fields ROLE_FIELDS are roles; `magnetar.observe.logging` passes them through here, so no caller can
forget it. The audit log must identify people, and shows roles unchanged.
"""

import base64
import hashlib
from typing import Final

ROLE_FIELDS: Final = frozenset(("role", "original"))
"""The keywords of log lines that name roles."""

AS_IT_IS: Final = "NONE"
_REDACTED: Final = "[REDACTED]"


def shown_role(role: str, mode: str) -> str:
    """Returns the text of a role for the log, by mode: NONE, REDACTED, hash:SHA256, hash:MD5."""
    if mode == AS_IT_IS:
        return role
    if mode == "hash:SHA256":
        return "SHA-256:" + _base64(hashlib.sha256(role.encode()).digest())
    if mode == "hash:MD5":
        # Pulsar's mode; it hides a name from readers of the log, and protects nothing else.
        return "MD5:" + _base64(hashlib.md5(role.encode(), usedforsecurity=False).digest())
    return _REDACTED


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
