"""Files of compactions that neither an artefact's record nor an attempt names: see `sweeping`."""

import re
from typing import Final

from magnetar.compaction.records import (
    ATTEMPTS_PREFIX,
    attempt_folder,
    compaction_key,
    decode_attempt,
    decode_compaction,
    files_of,
)
from magnetar.metadata.store import MetadataStore
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.sweeping import Named, Removed, sweep_folder

_NAME: Final = re.compile(r"compacted-[0-9a-f]{32}/\d{5}-[0-9a-f]{32}\.parquet")


async def sweep(
    metadata: MetadataStore, spec: StoreSpec, name: str, cluster_id: str, *, age_s: float
) -> Removed:
    """Removes files of a topic's compactions that nobody names."""

    async def named_now() -> Named:
        attempts = await metadata.list(f"{ATTEMPTS_PREFIX}{name}/")
        folders = {decode_attempt(each.key, each.value).folder for each in attempts}
        key = compaction_key(name)
        stored = await metadata.get(key)
        record = None if stored is None else decode_compaction(key, stored.value)
        paths = set() if record is None else {file.path for file in files_of(record, 0)}
        return lambda path: path in paths or path.rpartition("/")[0] in folders

    folder = attempt_folder(name, "").rpartition("/")[0]
    return await sweep_folder(spec, folder, _NAME, named_now, cluster_id, age_s=age_s)
