"""Opens the metadata store that a URL names, in the form of Pulsar's `metadataStoreUrl`.

    local:PATH                      an embedded RocksDB in this directory
    etcd:http://h1:2379,h2:2379     etcd's members; https for TLS
    etcd:http://h1:2379/ROOT        the same, all keys below /ROOT instead of the root given

A URL may also be written as Pulsar's, with the scheme before every member
(`etcd:http://h1:2379,http://h2:2379`). What etcd needs is imported only where it is asked for.

etcd must be told to forget the past (`--auto-compaction-retention=1h`), or its space runs out. An
hour is long enough: a watch that nothing happens to is moved on every ten minutes.
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
    """What goes with the URL; the empty string means that a field is not set."""

    root: str = ROOT_DEFAULT
    """Such as /magnetar/CLUSTER: two clusters on one etcd have two roots. Not for `local:`."""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)


def etcd_settings(url: str, options: StoreOptions) -> EtcdSettings:
    """What `etcd:…` says; raises MetadataSettingsError naming what is wrong and how to mend it."""
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
    """A literal IPv6 address stands in brackets: [::1]:2379."""
    return ":" in member.rpartition("]")[2]


def _tls(options: StoreOptions) -> EtcdTls:
    def path(name: str) -> Path | None:
        return Path(name) if name else None

    return EtcdTls(
        path(options.tls_ca_file), path(options.tls_cert_file), path(options.tls_key_file)
    )


async def open_store(url: str, clock: Clock, options: StoreOptions | None = None) -> MetadataStore:
    """The store that `url` names, open and answering.

    Raises MetadataSettingsError where the URL or the options cannot be used, MetadataUnavailable
    where etcd does not answer, errors.MetadataRefused where it refuses the user, and the errors of
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
        # gRPC writes lines of its own kind to stderr, where ours go; what matters it raises.
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
