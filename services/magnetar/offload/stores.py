"""Object stores by the names that Pulsar gives to its offload drivers.

A `StoreSpec` says where files are, and is part of every record of a file: what was offloaded stays
readable where the settings have moved on. Credentials are not part of it; they come from the
environment, as the SDKs of the stores read them (`AWS_ACCESS_KEY_ID`, a web identity, the
instance's role, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_KEY`, ...).

obstore is imported when the first store is opened, not before. Every request has a deadline
(REQUEST_TIMEOUT_S), and is tried again at most RETRIES_MAX times with back-off and jitter.
"""

from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import msgspec

from magnetar.offload.errors import (
    ColdFileMissing,
    ColdStoreUnavailable,
    OffloadMisconfigured,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

FILESYSTEM: Final = "filesystem"
S3_DRIVERS: Final = ("aws-s3", "S3", "s3")
GOOGLE: Final = "google-cloud-storage"
AZURE: Final = "azureblob"
DRIVERS: Final = (*S3_DRIVERS, GOOGLE, AZURE, FILESYSTEM)

CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 30.0
RETRIES_MAX: Final = 3
RETRY_FIRST_DELAY_S: Final = 0.1
RETRY_DELAY_S_MAX: Final = 2.0
RETRIES_TIMEOUT_S: Final = 60.0
DEFAULT_REGION: Final = "us-east-1"
_NO_BUCKET: Final = ("<Code>NoSuchBucket</Code>", "<Code>ContainerNotFound</Code>")
"""In what S3 and Google, and Azure, answer with 404 where files are not the only thing missing."""


class StoreSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where files are. `bucket` is a folder's path for `filesystem`, a container for Azure."""

    driver: str
    bucket: str
    region: str = ""
    endpoint: str = ""
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.driver}:{'/'.join(part for part in (self.bucket, self.prefix) if part)}"


def open_object_store(spec: StoreSpec) -> "ObjectStore":
    """A store for these files; nothing is asked of it yet. Raises OffloadMisconfigured."""
    if not spec.bucket:
        raise OffloadMisconfigured(
            f"the offload driver {spec.driver!r} needs a bucket, or a folder: set "
            "managedLedgerOffloadBucket, s3ManagedLedgerOffloadBucket or fileSystemURI"
        )
    opener = _openers().get(spec.driver)
    if opener is None:
        raise OffloadMisconfigured(
            f"the offload driver {spec.driver!r} is unknown: one of {', '.join(DRIVERS)}"
        )
    for package in ("obstore", "pyarrow"):
        if find_spec(package) is None:
            raise OffloadMisconfigured(f"{package} is not installed: install magnetar[offload]")
    try:
        return opener(spec)
    except Exception as error:
        raise OffloadMisconfigured(f"{spec} cannot be opened: {error}") from error


def _openers() -> "dict[str, Callable[[StoreSpec], ObjectStore]]":
    openers: dict[str, Callable[[StoreSpec], ObjectStore]] = dict.fromkeys(S3_DRIVERS, _open_s3)
    return openers | {FILESYSTEM: _open_folder, GOOGLE: _open_google, AZURE: _open_azure}


def _open_s3(spec: StoreSpec) -> "ObjectStore":
    from obstore.store import S3Store

    client = _client_config()
    if spec.endpoint:
        client["allow_http"] = urlsplit(spec.endpoint).scheme == "http"
        return S3Store(
            spec.bucket,
            prefix=spec.prefix or None,
            endpoint=spec.endpoint,
            region=spec.region or DEFAULT_REGION,
            virtual_hosted_style_request=False,
            client_options=client,
            retry_config=_retry_config(),
        )
    return S3Store(
        spec.bucket,
        prefix=spec.prefix or None,
        region=spec.region or DEFAULT_REGION,
        client_options=client,
        retry_config=_retry_config(),
    )


def _open_google(spec: StoreSpec) -> "ObjectStore":
    from obstore.store import GCSStore

    return GCSStore(
        spec.bucket,
        prefix=spec.prefix or None,
        client_options=_client_config(),
        retry_config=_retry_config(),
    )


def _open_azure(spec: StoreSpec) -> "ObjectStore":
    from obstore.store import AzureStore

    client = _client_config()
    if spec.endpoint:
        client["allow_http"] = urlsplit(spec.endpoint).scheme == "http"
        return AzureStore(
            spec.bucket,
            prefix=spec.prefix or None,
            endpoint=spec.endpoint,
            client_options=client,
            retry_config=_retry_config(),
        )
    return AzureStore(
        spec.bucket,
        prefix=spec.prefix or None,
        client_options=client,
        retry_config=_retry_config(),
    )


def _open_folder(spec: StoreSpec) -> "ObjectStore":
    from obstore.store import LocalStore

    # No automatic cleanup: folders that two jobs share must not vanish under one of them.
    return LocalStore(folder_of(spec), mkdir=True)


def folder_of(spec: StoreSpec) -> Path:
    """The folder of a `filesystem` store: a path, or a `file:` address as `fileSystemURI` has."""
    folder = spec.bucket
    if folder.startswith("file:"):
        folder = unquote(urlsplit(folder).path)
    elif "://" in folder:
        raise OffloadMisconfigured(f"fileSystemURI {folder!r} is no folder: use file:///path")
    return Path(folder) / spec.prefix


def _client_config() -> "ClientConfig":
    return {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
    }


def _retry_config() -> "RetryConfig":
    return {
        "max_retries": RETRIES_MAX,
        "retry_timeout": timedelta(seconds=RETRIES_TIMEOUT_S),
        "backoff": {
            "init_backoff": timedelta(seconds=RETRY_FIRST_DELAY_S),
            "max_backoff": timedelta(seconds=RETRY_DELAY_S_MAX),
            "base": 2,
        },
    }


def store_error(error: Exception, what: str) -> ColdFileMissing | ColdStoreUnavailable:
    """What an error of obstore means to a reader of the file that `what` names."""
    from obstore.exceptions import NotFoundError

    text = str(error)
    if any(code in text for code in _NO_BUCKET):
        return ColdStoreUnavailable(f"{what} cannot be had: the store has no such bucket")
    if isinstance(error, NotFoundError | FileNotFoundError):
        return ColdFileMissing(f"{what} is not in the store")
    reason = text.partition("\n")[0] or type(error).__name__
    return ColdStoreUnavailable(f"{what} cannot be had now: {reason}")
