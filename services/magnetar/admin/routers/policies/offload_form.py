"""Offload policies as Pulsar's clients send and read them. Pure.

Clients name a bucket, its region and its address by the driver (`s3ManagedLedgerOffloadBucket`), or
for all drivers alike (`managedLedgerOffloadBucket`). They are stored under the names for all
drivers, and shown under both. Clients also fill in defaults of fields that have no effect here;
those pass. Any other value of such a field is refused, and the refusal names the field.
"""

from collections.abc import Mapping
from typing import Any, Final

from magnetar.admin.routers.policies.refusal import InvalidPolicy
from magnetar.offload.stores import FILESYSTEM, GOOGLE, S3_DRIVERS
from magnetar.policies.lifecycle import OFFLOAD
from magnetar.policies.types import Record

Document = dict[str, Any]

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
"""Each driver's own names, and the names for all drivers."""

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

_FILLED_IN: Final[Mapping[str, tuple[object, ...]]] = {
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
"""Defaults that Java's and Go's clients send although nobody set them."""

_KNOWN: Final = frozenset(
    field.name for field in (OFFLOAD.type.fields if isinstance(OFFLOAD.type, Record) else ())
)


def taken(given: Any) -> Any:
    """The value under the names that are stored; raises InvalidPolicy naming a field."""
    if not isinstance(given, dict):
        return given
    said = {
        name: value
        for name, value in given.items()
        # Go's client writes 0 and an empty text for what is not set; a threshold may be 0.
        if value or (name in _KNOWN and value is not None and value != "")
    }
    driver = said.get(_DRIVER)
    found = {name: value for name, value in said.items() if name in _KNOWN}
    own = _OF_DRIVERS.get(str(driver), {})
    for name, value in said.items():
        if name in own:
            found[own[name]] = _same(name, value, own[name], said.get(own[name], value))
        elif name not in _KNOWN and value not in _FILLED_IN.get(name, ()):
            raise InvalidPolicy(_no_effect(name, driver))
    return found


def shown(value: Document) -> Document:
    """The value also under the names of its driver."""
    own = _OF_DRIVERS.get(str(value.get(_DRIVER)), {})
    return value | {name: value[plain] for name, plain in own.items() if plain in value}


def _same(name: str, value: object, plain: str, other: object) -> object:
    if value != other:
        raise InvalidPolicy(f"{name} and {plain} contradict each other: {value!r} and {other!r}")
    return value


def _no_effect(name: str, driver: object) -> str:
    owners = [other for other, names in _OF_DRIVERS.items() if name in names]
    if owners:
        return (
            f"{name} belongs to the driver {' or '.join(owners)}, and "
            f"{_DRIVER} is {driver or 'not set'}"
        )
    instead = _ELSEWHERE.get(name)
    return f"{name} has no effect here: {instead + ', and ' if instead else ''}leave it out"
