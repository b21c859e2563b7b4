"""Keys of Pulsar that name a metadata store besides `metadata_url`: they must name the same one.

Pulsar may keep tenants, policies and the records of ledgers in stores of their own. Magnetar has
one store for all. An operator who sets `configurationMetadataStoreUrl` to another store and sees
the process start believes that several clusters share their tenants and policies.

`zkServers=localhost:2181` is what BookKeeper's own file has, so it only causes the warning about
keys without effect.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from magnetar.settings.field import SettingsError

METADATA_KEYS: Final = ("metadataStoreUrl", "metadataServiceUri")
"""The keys of `metadata_url`, a setting that a standalone does not have."""
_SHIPPED: Final = {"zkServers": "localhost:2181"}
STORE_KEYS: Final = (
    "configurationMetadataStoreUrl",
    "configurationStoreServers",
    "globalZookeeperServers",
    "zookeeperServers",
    "bookkeeperMetadataServiceUri",
    *_SHIPPED,
)
_DRIVER: Final = "metadata-store:"
_LEDGERS: Final = "/ledgers"


def refuse_other_stores(
    named: Mapping[str, tuple[object, str]], stores: Iterable[object], own: str
) -> None:
    """Raises SettingsError if a key names another store than `metadata_url`.

    `named` has the values of STORE_KEYS with their origins, `stores` every value that a source
    gives for `metadata_url`, and `own` describes the store that the process uses.
    """
    same = {_members(store) for store in stores}
    for key, (value, origin) in named.items():
        if str(value).strip() == _SHIPPED.get(key) or _members(value) in same:
            continue
        raise SettingsError(
            f"{origin} is {value}, and the metadata store is {own}: Magnetar keeps everything in "
            "one store; remove the key, or set it to the value of metadataStoreUrl"
        )


def _members(store: object) -> frozenset[str]:
    """Returns the addresses of a store, in any order; BookKeeper's prefix and path do not count."""
    text = str(store).strip().removeprefix(_DRIVER).removesuffix("/").removesuffix(_LEDGERS)
    return frozenset(part.strip().rstrip("/").lower() for part in text.split(","))
