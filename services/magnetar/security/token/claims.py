"""The claims of a verified token: the role, the audience, and the time that it is valid.

Pure: the time is passed in. Times are seconds since the Unix epoch, whole or not (NumericDate of
RFC 7519). The payload is decoded strictly, so that no number is infinite or not a number.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from magnetar.security.api import AuthenticationFailed

Claims = Mapping[str, object]

_EPOCH_S_MAX: Final = 1 << 53
"""Later than any real time, and exact as a float."""


def decoded(payload: bytes) -> Claims:
    """Decodes the payload of a token; raises AuthenticationFailed if it is no JSON object."""
    try:
        claims = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise AuthenticationFailed("the token's payload is not JSON") from None
    if not isinstance(claims, dict):
        raise AuthenticationFailed("the token's payload is not a JSON object")
    return claims


def seconds(claims: Claims, name: str) -> float | None:
    """Returns the time of the claim `name`, None if it is absent."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthenticationFailed(f"the token's {name} is not a number")
    if not -_EPOCH_S_MAX <= value <= _EPOCH_S_MAX:
        raise AuthenticationFailed(f"the token's {name} is not a time")
    return float(value)


def check_times(claims: Claims, now_ms: int, skew_s: int) -> int | None:
    """Raises AuthenticationFailed if the token is expired or not yet valid.

    Returns the Unix time in ms at which it expires, the tolerated clock skew included; None if it
    does not expire.
    """
    now_s = now_ms / 1000
    expires_s, not_before_s = seconds(claims, "exp"), seconds(claims, "nbf")
    if not_before_s is not None and now_s + skew_s < not_before_s:
        raise AuthenticationFailed("the token is not valid yet (nbf)")
    if expires_s is None:
        return None
    if now_s - skew_s >= expires_s:
        raise AuthenticationFailed("the token has expired (exp)")
    return int((expires_s + skew_s) * 1000)


def check_audience(claims: Claims, claim: str, accepted: Collection[str]) -> None:
    """Raises AuthenticationFailed unless the claim names one of the accepted audiences."""
    value = claims.get(claim)
    audiences = value if isinstance(value, list) else [value]
    if not any(isinstance(audience, str) and audience in accepted for audience in audiences):
        raise AuthenticationFailed(f"the token's {claim} names none of the accepted audiences")


def role_of(claims: Claims, claim: str) -> str:
    """Returns the role that the claim names, the first if it is a list."""
    value = claims.get(claim)
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str) or not value:
        raise AuthenticationFailed(f"the token's claim {claim} names no role")
    return value
