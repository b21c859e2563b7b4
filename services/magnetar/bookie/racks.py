"""The racks and groups of bookies that an administrator has set, as one record of the cluster.

    /bookies-racks    {"version": 1, "groups": {"ssd": {"bk-0:3181": {"rack": "/eu/r1"}}}}

A rack that is set here precedes the one that the bookie registers with. A bookie is in one group:
the one that is set here, else GROUP_DEFAULT. The key lies in the prefix that every process with
bookies watches already, so following it costs no watch of its own.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from magnetar.core.errors import Conflict, MetadataError
from magnetar.metadata.records import RecordType, encode
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore

RACKS_KEY: Final = "/bookies-racks"
FORMAT: Final = 1
GROUP_DEFAULT: Final = "default"
CAS_ATTEMPTS_MAX: Final = 20


class Placed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a bookie is, under Pulsar's names."""

    rack: str
    hostname: str = ""


Groups = Mapping[str, Mapping[str, Placed]]
"""By group and bookie id."""


class _Record(msgspec.Struct, frozen=True):
    version: int
    groups: dict[str, dict[str, Placed]] = {}


_record_type = RecordType(_Record, "racks of bookies")


def decode_racks(key: str, value: bytes) -> Groups:
    """Decodes the record; raises MetadataError if this version cannot read it."""
    record = _record_type.decode(key, value)
    if record.version > FORMAT:
        raise MetadataError(
            f"{key} has format {record.version}; this version reads up to {FORMAT}: "
            "upgrade this process"
        )
    return record.groups


def encode_racks(groups: Groups) -> bytes:
    """Encodes the record."""
    return encode(_Record(FORMAT, {group: dict(members) for group, members in groups.items()}))


def with_bookie(groups: Groups, group: str, bookie_id: str, placed: Placed) -> Groups:
    """Returns a copy with the bookie in the group, and in no other."""
    changed = {name: dict(members) for name, members in without_bookie(groups, bookie_id).items()}
    changed.setdefault(group, {})[bookie_id] = placed
    return changed


def without_bookie(groups: Groups, bookie_id: str) -> Groups:
    """Returns a copy without the bookie, and without groups that are empty then."""
    kept = {
        group: {member: placed for member, placed in members.items() if member != bookie_id}
        for group, members in groups.items()
    }
    return {group: members for group, members in kept.items() if members}


def rack_path(rack: str) -> str:
    """Returns `/region/rack` in one form: `r1`, `/r1` and `/r1/` are the same rack.

    Otherwise, copies of an entry could be on one rack that was written in two ways.
    """
    return "/" + "/".join(part for part in rack.strip().split("/") if part)


def found(groups: Groups, bookie_id: str) -> tuple[str, Placed] | None:
    """Returns the group and the rack of a bookie, None if neither is set."""
    for group, members in groups.items():
        if bookie_id in members:
            return group, members[bookie_id]
    return None


async def read_racks(store: MetadataStore) -> Groups:
    """Returns what is set; raises MetadataError."""
    record = await store.get(RACKS_KEY)
    return {} if record is None else decode_racks(RACKS_KEY, record.value)


async def change_racks(store: MetadataStore, change: Callable[[Groups], Groups]) -> None:
    """Applies `change`, possibly repeatedly; raises what it raises, or Conflict."""
    for _ in range(CAS_ATTEMPTS_MAX):
        record = await store.get(RACKS_KEY)
        groups = {} if record is None else decode_racks(RACKS_KEY, record.value)
        revision = ABSENT if record is None else record.revision
        try:
            await store.put(RACKS_KEY, encode_racks(change(groups)), expected=revision)
        except BadRevision:
            continue
        return
    raise Conflict("The racks of bookies are being changed by others; try again")
