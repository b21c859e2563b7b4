"""Object stores, named as Pulsar names its offload drivers.

A `StoreSpec` identifies a store and is part of every file's record, so that offloaded ledgers stay
readable after the settings change. It holds no credentials; those come from the environment, in the
form that the stores' SDKs read (`AWS_ACCESS_KEY_ID`, a web identity, the instance's role,
`GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_KEY`, ...).

obstore is imported when the first store is opened. Every request has a deadline
(REQUEST_TIMEOUT_S), and is retried at most RETRIES_MAX times with back-off and jitter.
"""

from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from magnetar.core.errors import PreconditionFailed
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
SCHEMES: Final = {"s3": "aws-s3", "gs": GOOGLE, "az": AZURE}
URL_OPTIONS: Final = frozenset({"region", "endpoint"})

CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 30.0
RETRIES_MAX: Final = 3
RETRY_FIRST_DELAY_S: Final = 0.1
RETRY_DELAY_S_MAX: Final = 2.0
RETRIES_TIMEOUT_S: Final = 60.0
DEFAULT_REGION: Final = "us-east-1"
_NO_BUCKET: Final = ("<Code>NoSuchBucket</Code>", "<Code>ContainerNotFound</Code>")
"""Parts of 404 answers (of S3 and Google, and of Azure) that mean a missing bucket, not a missing
file."""


class StoreSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A store. `bucket` is a folder's path for `filesystem`, a container for Azure."""

    driver: str
    bucket: str
    region: str = ""
    endpoint: str = ""
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.driver}:{'/'.join(part for part in (self.bucket, self.prefix) if part)}"


def parse_store(url: str) -> StoreSpec:
    """Parses `s3://BUCKET/PREFIX?region=R&endpoint=URL` (also `gs:`, `az:`) or `file:///FOLDER`.

    An absolute path is a folder too. A percent-escape is decoded in a folder's URL, and refused in
    a prefix: the jobs once disagreed on its meaning there. Raises PreconditionFailed.
    """
    if url.startswith("/"):
        return StoreSpec(FILESYSTEM, url)
    parts = urlsplit(url)
    if parts.scheme == "file":
        folder = unquote(parts.path)
        if parts.query:
            raise PreconditionFailed(
                f"--store '{url}': a folder has no region and no endpoint: write file:///FOLDER"
            )
        if PurePosixPath(folder).is_absolute():
            return StoreSpec(FILESYSTEM, folder)
    driver = SCHEMES.get(parts.scheme)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if driver is None or not parts.netloc or options.keys() - URL_OPTIONS:
        raise PreconditionFailed(
            f"--store '{url}': write s3://BUCKET/PREFIX?region=R&endpoint=URL (or gs:, az:), "
            "or file:///FOLDER"
        )
    if "%" in parts.path:
        raise PreconditionFailed(
            f"--store '{url}': write the prefix without percent-escapes: "
            f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}"
        )
    region, endpoint = options.get("region", ""), options.get("endpoint", "")
    return StoreSpec(driver, parts.netloc, region, endpoint, parts.path.strip("/"))


def open_object_store(spec: StoreSpec) -> "ObjectStore":
    """Opens a store without sending a request. Raises OffloadMisconfigured."""
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

    # No automatic cleanup: a folder that two jobs share must not vanish while one still uses it.
    return LocalStore(folder_of(spec), mkdir=True)


def folder_of(spec: StoreSpec) -> Path:
    """The folder of a `filesystem` store: a path, or a `file:` URL as in `fileSystemURI`."""
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
    """Converts an error of obstore about the file or store that `what` names."""
    from obstore.exceptions import NotFoundError

    text = str(error)
    if any(code in text for code in _NO_BUCKET):
        return ColdStoreUnavailable(f"{what} cannot be read: the store has no such bucket")
    if isinstance(error, NotFoundError | FileNotFoundError):
        return ColdFileMissing(f"{what} is not in the store")
    reason = text.partition("\n")[0] or type(error).__name__
    return ColdStoreUnavailable(f"{what} cannot be read now: {reason}")
