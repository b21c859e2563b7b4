"""What time it is by a store's own clock: a small file is written, and the store says when.

By this, and by when it says that another file was written, the age of that file is known without
any clock of ours. S3, Google and Azure have clocks of their own. A folder's is that of the machine
whose disk it is: on a shared volume the file server, on a local disk this machine.

Whoever asks deletes the file at once; what one left that was killed in between goes with the first
question a day later.
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
"""By the store's clock; no question takes as long."""
_PROBE: Final = re.compile(rf"{PROBE_FOLDER}/[0-9a-f]{{32}}")


async def store_now_ms(spec: StoreSpec) -> int:
    """Not after now, by the store. Raises ColdStoreUnavailable, OffloadMisconfigured."""
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
            for each in await obstore.list(store, prefix=PROBE_FOLDER).collect_async():
                if _PROBE.fullmatch(each["path"]) and each["last_modified"] < before:
                    with suppress(FileNotFoundError):  # another has asked at the same time
                        await obstore.delete_async(store, each["path"])
    except Exception as error:
        raise store_error(error, f"the time of {spec}") from error
    return int(written.timestamp() * 1000)
