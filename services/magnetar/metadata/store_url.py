"""URLs of metadata stores, in the form of Pulsar's `metadataStoreUrl`.

    local:PATH                      an embedded RocksDB in this directory
    etcd:http://h1:2379,h2:2379     etcd's members; https for TLS
    etcd:http://h1:2379/ROOT        the same, with all keys below /ROOT instead of the option `root`

Like Pulsar's, a URL may repeat the scheme before every member
(`etcd:http://h1:2379,http://h2:2379`). The modules for etcd are imported only for such a URL.

etcd must compact its history (`--auto-compaction-retention=1h`), or it runs out of space. One hour
is enough: progress notifications advance idle watches every ten minutes.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from magnetar.core.clock import Clock
from magnetar.metadata.etcd.settings import EtcdSettings, EtcdTls, MetadataSettingsError
from magnetar.metadata.store import MetadataStore

ETCD_PORT_DEFAULT: Final = 2379
ROOT_DEFAULT: Final = "/magnetar"
FORMS: Final = "etcd:http://HOST:PORT,HOST:PORT, etcd:https://… or local:PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options beside the URL; an empty string means that the field is not set."""

    root: str = ROOT_DEFAULT
    """For example /magnetar/CLUSTER: clusters that share an etcd need different roots. Not for
    `local:`."""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)


def etcd_settings(url: str, options: StoreOptions) -> EtcdSettings:
    """Parses `etcd:…`; raises MetadataSettingsError with the fault and the fix."""
    rest = url.removeprefix("etcd:")
    scheme, separator, authority = rest.partition("://")
    if not separator or scheme not in ("http", "https"):
        raise MetadataSettingsError(
            f"metadata store URL {url!r}: write etcd:http://HOST:PORT, or https for TLS"
        )
    members = []
    root = options.root
    parts = authority.split(",")
    for index, part in enumerate(parts):
        member = part.strip()
        if "://" in member:
            own_scheme, _, member = member.partition("://")
            if own_scheme != scheme:
                raise MetadataSettingsError(
                    f"metadata store URL {url!r}: all members speak {scheme}, or all the other"
                )
        if "/" in member and index == len(parts) - 1:
            member, _, path = member.partition("/")
            root = f"/{path.strip('/')}" if path.strip("/") else root
        members.append(member if _has_port(member) else f"{member}:{ETCD_PORT_DEFAULT}")
    if scheme == "http" and (options.tls_ca_file or options.tls_cert_file or options.tls_key_file):
        raise MetadataSettingsError(
            f"metadata store URL {url!r} says http, but TLS files are set: write etcd:https://…"
        )
    return EtcdSettings(
        endpoints=members,
        root=root.rstrip("/"),
        tls=_tls(options) if scheme == "https" else None,
        username=options.username,
        password=options.password,
    )


def _has_port(member: str) -> bool:
    """Whether `member` has a port; an IPv6 address is in brackets: [::1]:2379."""
    return ":" in member.rpartition("]")[2]


def _tls(options: StoreOptions) -> EtcdTls:
    def path(name: str) -> Path | None:
        return Path(name) if name else None

    return EtcdTls(
        path(options.tls_ca_file), path(options.tls_cert_file), path(options.tls_key_file)
    )


async def open_store(url: str, clock: Clock, options: StoreOptions | None = None) -> MetadataStore:
    """Opens the store at `url`; returns once it answers.

    Raises MetadataSettingsError if the URL or the options are not valid, MetadataUnavailable if
    etcd does not answer, errors.MetadataRefused if it refuses the user, and the errors of
    `embedded.open_embedded`.
    """
    options = options or StoreOptions()
    if url.startswith("local:"):
        path = url.removeprefix("local:").removeprefix("//")
        if not path:
            raise MetadataSettingsError(f"metadata store URL {url!r}: a directory is missing")
        from magnetar.metadata.embedded import open_embedded

        return await open_embedded(Path(path), clock)
    if url.startswith("etcd:"):
        settings = etcd_settings(url, options)
        # gRPC logs to stderr in a format of its own; it raises the errors that matter.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        try:
            from magnetar.metadata.etcd.store import open_etcd
        except ModuleNotFoundError as error:
            if error.name != "grpc":
                raise
            raise MetadataSettingsError(
                "the metadata store on etcd needs gRPC: pip install 'magnetar[etcd]'"
            ) from error
        return await open_etcd(settings, clock)
    raise MetadataSettingsError(f"metadata store URL {url!r} is not known: write {FORMS}")
