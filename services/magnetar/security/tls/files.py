"""The files of a TLS context: their fingerprints, and errors that name the wrong file."""

import os
import ssl
from collections.abc import Iterable
from pathlib import Path

Fingerprint = tuple[tuple[int, int, int], ...]
"""Device and inode, size and time of change of each file, behind all symbolic links."""


class TlsFileError(OSError):
    """A certificate, key or trust file cannot be used. The text names the file and the reason."""


def fingerprint(paths: Iterable[Path]) -> Fingerprint:
    """Returns the fingerprint, which changes if a file or a link to it is replaced or written.

    Kubernetes replaces the files of a Secret by changing a symbolic link in their path.
    Raises TlsFileError if a file does not exist.
    """
    return tuple(_identity(path) for path in paths)


def _identity(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise TlsFileError(f"{path}: {error.strerror}") from error
    return status.st_ino ^ (status.st_dev << 64), status.st_size, status.st_mtime_ns


def load_certificate(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    """Loads the chain and its key; raises TlsFileError that names the wrong file."""
    for path in (cert_file, key_file):
        _check_readable(path)
    try:
        context.load_cert_chain(cert_file, key_file, password=_refuse_password)
    except _Encrypted:
        raise TlsFileError(
            f"{key_file}: the private key is encrypted; write it without a password: "
            f"openssl pkey -in {key_file} -out KEY.pem"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsFileError(f"{key_file} is not the key of {cert_file}") from None
        raise TlsFileError(
            f"{cert_file} and {key_file}: no certificate with its key in PEM ({_reason(error)})"
        ) from None


def load_trust(context: ssl.SSLContext, trust_file: Path) -> None:
    """Loads the CA certificates; raises TlsFileError if there is none."""
    _check_readable(trust_file)
    try:
        context.load_verify_locations(trust_file)
    except ssl.SSLError as error:
        raise TlsFileError(f"{trust_file}: no CA certificates in PEM ({_reason(error)})") from None


class _Encrypted(Exception):
    """The private key needs a password."""


def _refuse_password() -> str:
    # Without this, OpenSSL asks for the password on the terminal and blocks the process.
    raise _Encrypted


def _check_readable(path: Path) -> None:
    if not os.access(path, os.R_OK):
        reason = "cannot be read" if path.exists() else "does not exist"
        raise TlsFileError(f"{path} {reason}")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "not PEM").lower().replace("_", " ")
