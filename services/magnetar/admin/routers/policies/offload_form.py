"""Offload policies in the form of Pulsar's clients. Pure: no IO.

Clients name a bucket, its region and its address after the driver (`s3ManagedLedgerOffloadBucket`)
or with the common names (`managedLedgerOffloadBucket`). They are stored with the common names and
shown with both. Clients also send defaults for fields that have no effect in Magnetar; those are
ignored. Any other value of such a field is refused with a reason that names the field.
"""

from collections.abc import Mapping
from typing import Final

from magnetar.broker.catalog.resources import Document
from magnetar.core.errors import PreconditionFailed
from magnetar.offload.stores import FILESYSTEM, GOOGLE, S3_DRIVERS
from magnetar.policies.lifecycle import OFFLOAD
from magnetar.policies.types import Record

_DRIVER: Final = "managedLedgerOffloadDriver"
_BUCKET: Final = "managedLedgerOffloadBucket"
_REGION: Final = "managedLedgerOffloadRegion"
_ENDPOINT: Final = "managedLedgerOffloadServiceEndpoint"

_S3: Final = {
    "s3ManagedLedgerOffloadBucket": _BUCKET,
    "s3ManagedLedgerOffloadRegion": _REGION,
    "s3ManagedLedgerOffloadServiceEndpoint": _ENDPOINT,
}
_OF_DRIVERS: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys(S3_DRIVERS, _S3),
    GOOGLE: {"gcsManagedLedgerOffloadBucket": _BUCKET, "gcsManagedLedgerOffloadRegion": _REGION},
    FILESYSTEM: {"fileSystemURI": _BUCKET},
}
"""The common name for each name that a driver has of its own."""

_ELSEWHERE: Final = {
    **dict.fromkeys(
        (
            "s3ManagedLedgerOffloadCredentialId",
            "s3ManagedLedgerOffloadCredentialSecret",
            "s3ManagedLedgerOffloadRole",
            "s3ManagedLedgerOffloadRoleSessionName",
            "gcsManagedLedgerOffloadServiceAccountKeyFile",
        ),
        "brokers and jobs take credentials from their environment",
    ),
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "set managedLedgerOffloadThresholdInBytes",
    "fileSystemProfilePath": "set fileSystemURI",
}
"""What to do instead of setting a field that has no effect here."""

_DEFAULTS: Final[Mapping[str, tuple[object, ...]]] = {
    "offloadersDirectory": ("./offloaders",),
    "managedLedgerOffloadMaxThreads": (2,),
    "managedLedgerOffloadReadThreads": (2,),
    "managedLedgerOffloadPrefetchRounds": (1,),
    "managedLedgerOffloadMaxBlockSizeInBytes": (64 << 20,),
    "managedLedgerOffloadReadBufferSizeInBytes": (1 << 20,),
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": (-1,),
    "s3ManagedLedgerOffloadMaxBlockSizeInBytes": (64 << 20,),
    "s3ManagedLedgerOffloadReadBufferSizeInBytes": (1 << 20,),
    "s3ManagedLedgerOffloadRoleSessionName": ("pulsar-s3-offload",),
    "gcsManagedLedgerOffloadMaxBlockSizeInBytes": (64 << 20, 128 << 20),
    "gcsManagedLedgerOffloadReadBufferSizeInBytes": (1 << 20,),
    "s3Driver": (True,),
    "gcsDriver": (True,),
    "fileSystemDriver": (True,),
}
"""Defaults that Java's and Go's clients send for fields that are not set."""

_STORED_FIELDS: Final = frozenset(
    field.name for field in (OFFLOAD.type.fields if isinstance(OFFLOAD.type, Record) else ())
)


def stored(raw: object) -> object:
    """Returns a client's value with the stored names; raises PreconditionFailed with the field."""
    if not isinstance(raw, dict):
        return raw
    fields = {
        name: value
        for name, value in raw.items()
        # Go's client sends 0 and "" for fields that are not set; a threshold may be 0.
        if value or (name in _STORED_FIELDS and value is not None and value != "")
    }
    driver = fields.get(_DRIVER)
    result = {name: value for name, value in fields.items() if name in _STORED_FIELDS}
    own = _OF_DRIVERS.get(str(driver), {})
    for name, value in fields.items():
        if name in own:
            result[own[name]] = _same(name, value, own[name], fields.get(own[name], value))
        elif name not in _STORED_FIELDS and value not in _DEFAULTS.get(name, ()):
            raise PreconditionFailed(_no_effect(name, driver))
    return result


def shown(value: Document) -> Document:
    """Adds the names of the value's driver."""
    own = _OF_DRIVERS.get(str(value.get(_DRIVER)), {})
    return value | {name: value[common] for name, common in own.items() if common in value}


def _same(name: str, value: object, common: str, other: object) -> object:
    if value != other:
        raise PreconditionFailed(
            f"{name} and {common} contradict each other: {value!r} and {other!r}"
        )
    return value


def _no_effect(name: str, driver: object) -> str:
    owners = [other for other, names in _OF_DRIVERS.items() if name in names]
    if owners:
        return (
            f"{name} belongs to the driver {' or '.join(owners)}, and "
            f"{_DRIVER} is {driver or 'not set'}"
        )
    instead = _ELSEWHERE.get(name)
    return f"{name} has no effect here: {instead + '; ' if instead else ''}leave it out"
