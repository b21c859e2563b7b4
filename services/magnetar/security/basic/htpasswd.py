"""Parses htpasswd files and checks passwords against their hashes.

A line is `user:hash`; blank lines and comments (`#`) are skipped, the last line of a user counts.
The formats are those of Pulsar, `$apr1$` and the DES of crypt(3), and the stronger bcrypt
(`htpasswd -B`). A file with another format is refused; the error names the supported ones. libpass
and bcrypt compute and compare the hashes, in constant time.

Checking is slow on purpose, so it belongs in a thread. The libraries are imported when the file is
parsed: their own lazy imports fail if two threads come at once. Bounds: USERS_MAX,
PASSWORD_BYTES_MAX, and BCRYPT_COST_MAX, with which a check takes about two seconds.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.security.errors import ConfigurationError

USERS_MAX: Final = 10_000
PASSWORD_BYTES_MAX: Final = 1_024
BCRYPT_COST_MAX: Final = 15
_BCRYPT_PASSWORD_BYTES: Final = 72
"""The part of a password that bcrypt uses, and htpasswd hashes."""

_APR1: Final = re.compile(r"\$apr1\$[./0-9A-Za-z]{1,8}\$[./0-9A-Za-z]{22}")
_BCRYPT: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./0-9A-Za-z]{53}")
_DES: Final = re.compile(r"[./0-9A-Za-z]{13}")


@dataclass(frozen=True, slots=True)
class Users:
    """The users of a file, and the hashes of their passwords."""

    hashes: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Users({len(self.hashes)})"

    def verify(self, user: str, password: bytes) -> bool:
        """Returns whether the password is the user's. Takes as long for unknown users."""
        hashed = self.hashes.get(user)
        if hashed is not None:
            return _verify(hashed, password)
        for other in self.hashes.values():
            _verify(other, password)
            break
        return False


def parsed(content: bytes, what: str) -> Users:
    """Parses an htpasswd file; raises ConfigurationError with the number of the wrong line."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{what} is not UTF-8 text") from None
    hashes: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        user, colon, hashed = text.partition(":")
        if not colon or not user:
            raise ConfigurationError(f"line {number} of {what} is not user:hash")
        _check_format(hashed, f"the hash of {user} in line {number} of {what}")
        hashes[user] = hashed
        if len(hashes) > USERS_MAX:
            raise ConfigurationError(f"{what} has more than {USERS_MAX} users")
    for hashed in hashes.values():
        _scheme(hashed)
    return Users(hashes)


def _check_format(hashed: str, what: str) -> None:
    if _APR1.fullmatch(hashed) or _DES.fullmatch(hashed):
        return
    if match := _BCRYPT.fullmatch(hashed):
        if int(match[1]) > BCRYPT_COST_MAX:
            raise ConfigurationError(f"{what} has the cost {match[1]}, more than {BCRYPT_COST_MAX}")
        return
    raise ConfigurationError(
        f"{what} has no supported format: bcrypt (`htpasswd -B`), $apr1$ (`htpasswd -m`), or DES "
        "(`htpasswd -d`)"
    )


def _verify(hashed: str, password: bytes) -> bool:
    if len(password) > PASSWORD_BYTES_MAX or b"\0" in password:
        return False
    return _scheme(hashed)(password, hashed)


def _scheme(hashed: str) -> Callable[[bytes, str], bool]:
    """Returns the function that checks a password against hashes of this format."""
    if hashed.startswith("$2"):
        import bcrypt

        return lambda password, hashed: bcrypt.checkpw(
            password[:_BCRYPT_PASSWORD_BYTES], hashed.encode()
        )
    from passlib.hash import apr_md5_crypt, des_crypt

    scheme = apr_md5_crypt if hashed.startswith("$apr1$") else des_crypt
    return lambda password, hashed: bool(scheme.verify(password, hashed))
