"""The short form of the campaign: jobs `offload` are killed, with JVM and workers.

One job loses a Python worker and an executor, and continues.

Each kill comes at a random moment after an attempt of the job to write a file; the long form is
`python -m tests.chaos.offload_kills`. `OFFLOAD_KILLS_SEED` repeats a run's moments.
"""

import os
import random
from pathlib import Path

import pulsar
import pytest
from tests.chaos.followed import Followed
from tests.chaos.offload_kills import Campaign, publish
from tests.chaos.spark_kills import Kind, Rounds

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.offload.records import ATTEMPTS_PREFIX

MESSAGES = 300


@pytest.mark.timeout(900)
def test_a_killed_job_loses_doubles_and_leaves_nothing(
    cluster: LocalCluster, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("OFFLOAD_KILLS_SEED") or random.randrange(1 << 31))
    rng = random.Random(seed)
    print(f"OFFLOAD_KILLS_SEED={seed}")
    with Followed(cluster.metadata_url, ATTEMPTS_PREFIX) as attempts:
        these = Campaign(
            cluster.metadata_url,
            topic,
            tmp_path / "store",
            attempts,
            rng,
            lambda: publish(client, topic, MESSAGES, rng),
            anywhere=0.0,
            strike_s_max=0.3,
        )
        rounds = Rounds(these, rng)
        for kinds in ([Kind.SESSION], [Kind.WORKER, Kind.EXECUTOR]):
            while not rounds.strike(kinds):
                pass  # it ended before the kill
        these.finish()
        assert these.check()
