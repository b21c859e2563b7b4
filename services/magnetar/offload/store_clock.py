"""Reads a store's own clock: writes a small file, and reads the time that the store gives it.

Compared with the time that the store gives another file, it yields that file's age without any
clock of ours. S3, Google and Azure have clocks of their own. A folder's clock is that of the
machine that has the disk: the file server for a shared volume, this machine for a local disk.

The probe file is deleted at once. One that a killed process left is deleted by the first probe a
day later.
"""

import asyncio
import re
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import Final

from magnetar.offload.stores import StoreSpec, open_object_store, store_error

PROBE_TIMEOUT_S: Final = 90.0
PROBE_FOLDER: Final = "magnetar-clock"
PROBE_AGE_S: Final = 24 * 3600
"""Age of a leftover probe file by the store's clock; no probe takes as long."""
_PROBE: Final = re.compile(rf"{PROBE_FOLDER}/[0-9a-f]{{32}}")


async def store_now_ms(spec: StoreSpec) -> int:
    """The store's time, at most now. Raises ColdStoreUnavailable, OffloadMisconfigured."""
    import obstore

    store = open_object_store(spec)
    path = f"{PROBE_FOLDER}/{uuid.uuid4().hex}"
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await obstore.put_async(store, path, b"what time is it?")
            try:
                written = (await obstore.head_async(store, path))["last_modified"]
            finally:
                await obstore.delete_async(store, path)
            before = written - timedelta(seconds=PROBE_AGE_S)
            for meta in await obstore.list(store, prefix=PROBE_FOLDER).collect_async():
                if _PROBE.fullmatch(meta["path"]) and meta["last_modified"] < before:
                    with suppress(FileNotFoundError):  # another probe has deleted it
                        await obstore.delete_async(store, meta["path"])
    except Exception as error:
        raise store_error(error, f"the time of {spec}") from error
    return int(written.timestamp() * 1000)
