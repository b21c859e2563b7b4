"""What time it is by a store's own clock: a small file is written, and the store says when.

By this, and by when it says that another file was written, the age of that file is known without
any clock of ours. S3, Google and Azure have clocks of their own. A folder's is that of the machine
whose disk it is: on a shared volume the file server, on a local disk this machine.
"""

import asyncio
import uuid
from typing import Final

from magnetar.offload.stores import StoreSpec, open_object_store, store_error

PROBE_TIMEOUT_S: Final = 90.0
PROBE_PREFIX: Final = "magnetar-clock-"


async def store_now_ms(spec: StoreSpec) -> int:
    """Not after now, by the store. Raises ColdStoreUnavailable, OffloadMisconfigured."""
    import obstore

    store = open_object_store(spec)
    path = PROBE_PREFIX + uuid.uuid4().hex
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await obstore.put_async(store, path, b"what time is it?")
            try:
                written = (await obstore.head_async(store, path))["last_modified"]
            finally:
                await obstore.delete_async(store, path)
    except Exception as error:
        raise store_error(error, f"the time of {spec}") from error
    return int(written.timestamp() * 1000)
