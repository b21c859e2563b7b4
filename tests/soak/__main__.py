"""`make soak`: a standalone under churn for an hour; its memory is sampled, judged and drawn.

Each round connects a client, attaches producers, consumers and readers of all types over many
topics, and disconnects (`tests.support.churn`). With --own-client, a program of our client runs
instead, in a process of its own (`application.py`), whose memory is judged; the server is killed
and started again every --restart-every minutes. The exit code is 1 if memory grew after the
warm-up, or if a round failed. `soak.svg` and `soak.jsonl` go to --output.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import httpx
from tests.soak.memory import Sample, Verdict, judge, judge_client, write_picture
from tests.soak.own_client import KEPT_S, OwnClient
from tests.support.churn import churn_round
from tests.support.server_process import ServerProcess

SAMPLE_EVERY_S: Final = 5.0
ENVIRONMENT: Final = {
    "MAGNETAR_FAILOVER_DELAY_MS": "0",
    # Small, so that it is full before the warm-up ends: what grows then is no cache.
    "MAGNETAR_CACHE_SIZE_MB": "4",
}
TRANSACTIONS: Final = {"MAGNETAR_TRANSACTIONS": "true"}
OWN_RATE: Final = 2.0
"""Rounds per second of --own-client without --rate."""
CACHES: Final = (
    "bookie_index_memory_bytes",
    "bookie_read_cache_size",
    "bookie_write_cache_size",
    "pulsar_ml_cache_used_size",
)
METRICS_TIMEOUT_S: Final = 30.0
PROGRESS_EVERY: Final = 12
"""Samples between two lines of progress."""


def _cached_mib(server: ServerProcess) -> float:
    page = httpx.get(f"{server.http_url}/metrics", timeout=METRICS_TIMEOUT_S).text
    sizes = [
        float(line.split()[-1])
        for line in page.splitlines()
        if line.partition("{")[0].partition(" ")[0] in CACHES
    ]
    return sum(sizes) / (1 << 20)


async def _churn(server: ServerProcess, numbers: Iterator[int], done: list[int], topics: int,
                 pause_s: float) -> None:  # fmt: skip
    while True:
        began = time.monotonic()
        await churn_round(server.host, server.port, next(numbers), topics)
        done[0] += 1
        await asyncio.sleep(max(0.0, pause_s - (time.monotonic() - began)))


async def _soak(server: ServerProcess, options: argparse.Namespace) -> list[Sample]:
    samples: list[Sample] = []
    numbers, done = itertools.count(), [0]
    pause_s = options.clients / options.rate if options.rate else 0.0
    began = time.monotonic()
    with (options.output / "soak.jsonl").open("w") as lines:
        async with asyncio.TaskGroup() as group:
            clients = [
                group.create_task(_churn(server, numbers, done, options.topics, pause_s))
                for _ in range(options.clients)
            ]
            while (at_s := time.monotonic() - began) < options.minutes * 60:
                cached_mib = await asyncio.to_thread(_cached_mib, server)
                sample = Sample(at_s, server.resident_bytes() / (1 << 20), cached_mib, done[0])
                samples.append(sample)
                print(json.dumps(asdict(sample)), file=lines, flush=True)
                if len(samples) % PROGRESS_EVERY == 1:
                    print(
                        f"{at_s / 60:5.1f} min  {sample.resident_mib:7.1f} MiB, "
                        f"{sample.kept_mib:7.1f} without caches  "
                        f"{sample.rounds:8,} rounds",
                        flush=True,
                    )
                await asyncio.sleep(SAMPLE_EVERY_S)
            for client in clients:
                client.cancel()
    return samples


async def _soak_own_client(
    server: ServerProcess, options: argparse.Namespace
) -> tuple[list[Sample], list[str]]:
    samples: list[Sample] = []
    began = time.monotonic()
    restart_s = options.restart_every * 60 or float("inf")
    next_restart_s = restart_s
    with (options.output / "soak.jsonl").open("w") as lines:
        client = await OwnClient.start(server.service_url, options.rate or OWN_RATE, lines)
        try:
            while (at_s := time.monotonic() - began) < options.minutes * 60 and client.runs:
                if at_s >= next_restart_s:
                    next_restart_s += restart_s
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                cached_mib = await asyncio.to_thread(_cached_mib, server)
                sample = Sample(
                    at_s, server.resident_bytes() / (1 << 20), cached_mib,
                    client.rounds, client.resident_mib(),
                )  # fmt: skip
                samples.append(sample)
                print(json.dumps(asdict(sample)), file=lines, flush=True)
                if len(samples) % PROGRESS_EVERY == 1:
                    print(
                        f"{at_s / 60:5.1f} min  client {sample.client_mib:6.1f} MiB, server "
                        f"{sample.resident_mib:6.1f} MiB  {sample.rounds:8,} rounds",
                        flush=True,
                    )
                await asyncio.sleep(SAMPLE_EVERY_S)
        finally:
            faults = await client.stop()
    return samples, faults


def _keep_briefly(server: ServerProcess) -> None:
    """Lets messages that no subscription takes expire, so that backlogs stay bounded."""
    url = f"{server.http_url}/admin/v2/namespaces/public/default/messageTTL"
    httpx.post(url, json=KEPT_S, timeout=METRICS_TIMEOUT_S).raise_for_status()


def _print(name: str, verdict: Verdict, output: Path) -> None:
    print(
        f"{name} {verdict.before_mib:.1f} MiB after the warm-up, {verdict.after_mib:.1f} MiB at "
        f"the end: {verdict.bytes_per_round:.0f} bytes a round over {verdict.rounds:,} rounds; "
        f"{output}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak ARGS=...", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--clients", type=int, default=8, help="rounds under way at once")
    parser.add_argument("--rate", type=float, default=0.0, help="rounds per second; 0: flat out")
    parser.add_argument("--own-client", action="store_true", help="a program of our own client")
    parser.add_argument(
        "--restart-every", type=float, default=10.0, help="minutes, with --own-client; 0: never"
    )
    parser.add_argument("--output", type=Path, default=Path("soak"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    environment = ENVIRONMENT | (TRANSACTIONS if options.own_client else {})
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(ServerProcess(root, environment=environment))
        if options.own_client:
            _keep_briefly(server)
            samples, faults = asyncio.run(_soak_own_client(server, options))
        else:
            samples, faults = asyncio.run(_soak(server, options)), []
    picture = options.output / "soak.svg"
    for fault in faults:
        print(fault)
    if options.own_client:
        verdict = judge_client(samples)
        write_picture(samples, picture, "a program of our client under churn", client=True)
        _print("the client", verdict, picture)
    else:
        verdict = judge(samples)
        write_picture(samples, picture, f"magnetar standalone, {options.topics} topics under churn")
        _print("without caches", verdict, picture)
    return 0 if verdict.flat and not faults else 1


sys.exit(main())
