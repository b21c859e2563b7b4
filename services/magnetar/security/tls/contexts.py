"""Builds OpenSSL contexts from configurations.

TLS 1.2 is the lowest protocol. Sessions are not resumed: a resumed session would skip the check of
the client's certificate, which may have expired or lost its CA since. Renegotiation is refused, so
that a client cannot make the server repeat the expensive half of a handshake.
"""

import ssl
from typing import Final

from magnetar.security.tls.certificates import issued_by_root
from magnetar.security.tls.defaults import PROTOCOLS, TLS_1_2
from magnetar.security.tls.files import load_certificate, load_trust
from magnetar.security.tls.settings import (
    ClientTlsConfig,
    ServerTlsConfig,
    TlsOptions,
)

_VERSIONS: Final = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_CIPHERS_OF_1_3: Final = ("TLS_AES_", "TLS_CHACHA20_")
"""How the names of TLS 1.3's suites begin; those of 1.2 name a key exchange after `TLS_`."""


def server_context(config: ServerTlsConfig) -> ssl.SSLContext:
    """Returns the context of a server; raises TlsFileError."""
    context = _presenting(config)
    if config.trust_file is not None:
        load_trust(context, config.trust_file)
        context.verify_mode = _verify_mode(config)
    return context


def _presenting(config: ServerTlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _apply(context, config.options)
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    load_certificate(context, config.cert_file, config.key_file)
    return context


def _verify_mode(config: ServerTlsConfig) -> ssl.VerifyMode:
    return ssl.CERT_REQUIRED if config.require_client_cert else ssl.CERT_OPTIONAL


def presenting_context(config: ServerTlsConfig) -> ssl.SSLContext | None:
    """Returns a context to begin handshakes with, if that of `server_context` would be slow.

    Given a certificate without a chain, OpenSSL looks for its issuers among the CAs that verify
    clients. It does so, and verifies a signature, in each handshake, and then sends even the root.
    The context here has no CAs, and sends the certificate only, as a root needs not be sent. The
    handshake must continue with that of `server_context`, which verifies the client. If it did
    not, every client certificate would be refused.

    Raises TlsFileError.
    """
    if config.trust_file is None or not issued_by_root(config.cert_file, config.trust_file):
        return None
    context = _presenting(config)
    context.verify_mode = _verify_mode(config)
    return context


def client_context(config: ClientTlsConfig) -> ssl.SSLContext:
    """Returns the context of a client; raises TlsFileError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _apply(context, config.options)
    context.check_hostname = config.verify_hostname and not config.allow_insecure
    context.verify_mode = ssl.CERT_NONE if config.allow_insecure else ssl.CERT_REQUIRED
    if config.trust_file is not None:
        load_trust(context, config.trust_file)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if config.cert_file is not None and config.key_file is not None:
        load_certificate(context, config.cert_file, config.key_file)
    return context


def check_options(options: TlsOptions) -> None:
    """Raises ValueError if a protocol or cipher is not one that OpenSSL has."""
    _apply(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), options)


def _apply(context: ssl.SSLContext, options: TlsOptions) -> None:
    unknown = [name for name in options.protocols if name not in PROTOCOLS]
    if unknown or not options.protocols:
        raise ValueError(
            f"TLS protocols {', '.join(options.protocols)}: allowed are {', '.join(PROTOCOLS)}"
        )
    versions = [_VERSIONS[name] for name in options.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    if not options.ciphers:
        return
    fixed = [name for name in options.ciphers if name.startswith(_CIPHERS_OF_1_3)]
    if fixed:
        raise ValueError(
            f"TLS ciphers {', '.join(fixed)}: the suites of TLS 1.3 cannot be chosen; "
            f"name those of {TLS_1_2} only"
        )
    names = [_openssl_name(name) for name in options.ciphers]
    for name in names:
        # OpenSSL accepts keywords such as NULL, and lists of which it knows one name.
        _set_ciphers(context, name)
        if name not in {cipher["name"] for cipher in context.get_ciphers()}:
            raise ValueError(f"TLS ciphers: {name} is not the name of one suite")
    _set_ciphers(context, ":".join(names))


def _openssl_name(name: str) -> str:
    """Returns OpenSSL's name of a suite, `ECDHE-RSA-AES128-GCM-SHA256`, for IANA's or its own."""
    if not name.startswith("TLS_") or "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    return f"{exchange}-{cipher.removesuffix('_SHA256') if 'POLY' in cipher else cipher}".replace(
        "_", "-"
    )


def _set_ciphers(context: ssl.SSLContext, names: str) -> None:
    try:
        context.set_ciphers(names)
    except ssl.SSLError:
        raise ValueError(f"TLS ciphers: OpenSSL has no suite {names}") from None
