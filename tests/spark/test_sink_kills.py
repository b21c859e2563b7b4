"""The short form of the campaign: a query that copies a topic is killed, as are its parts.

One run loses its driver with all executors; one loses an executor and a broker, and continues. The
long form is `python -m tests.chaos.sink_kills`. `SINK_KILLS_SEED` repeats a run's moments.
"""

import os
import random
from contextlib import closing
from pathlib import Path

import pulsar
import pytest
from tests.chaos.sink_kills import SETTINGS, Copies
from tests.chaos.spark_kills import Kind, Rounds
from tests.support.cluster_processes import running_cluster

MESSAGES = 1_500


@pytest.mark.timeout(900)
def test_a_killed_query_copies_every_message_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("SINK_KILLS_SEED") or random.randrange(1 << 31))
    rng = random.Random(seed)
    print(f"SINK_KILLS_SEED={seed}")
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log"))
    with (
        running_cluster(tmp_path / "cluster", bookies=3, brokers=2, **SETTINGS) as cluster,
        closing(pulsar.Client(cluster.service_url, logger=logger)) as client,
    ):
        copies = Copies(cluster, client, tmp_path, rng, MESSAGES)
        copies.prepare()
        rounds = Rounds(copies, rng, kill_broker=copies.kill_broker)
        for kinds in ([Kind.SESSION], [Kind.EXECUTOR, Kind.BROKER]):
            while not rounds.strike(kinds):
                pass  # it ended before the kill
        copies.finish()
        assert copies.check() >= 2 * MESSAGES
