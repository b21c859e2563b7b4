"""`python -m tests.kube.e2e`: the steps in order, on the Kubernetes that KUBECONFIG points to.

Prints each step with its time and what was found, and a summary; `--json FILE` writes the same for
programs. Ends with 0 where all steps held, 1 at the first that did not (with the pods' last lines),
2 where there is no Kubernetes that runs containers. All is in namespaces of its own, which are
deleted at the end, unless `--keep`.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.support.kube import (
    Images,
    ToolError,
    capabilities,
    connected,
    delete_namespace,
    fresh_namespace,
    tool,
)
from tests.support.kube_volumes import open_volumes

from . import autoscaled, closed, closing, jobs, leaving, operated, plain
from .load import Load
from .world import StepError, World

LOG_LINES: Final = 8
SHOWN_LINES: Final = 30
WAITS_FOR: Final = '{range .items[*]}{.metadata.name}: {.status.conditions[*].message}{"\\n"}{end}'


@dataclass
class Report:
    """What was done, with times."""

    steps: list[dict[str, object]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    ok: bool = True

    @contextmanager
    def step(self, world: World, name: str) -> Iterator[None]:
        began = time.monotonic()
        print(f"[{began - self.began:6.1f} s] {name} ...", flush=True)
        world.notes.clear()
        held, text = True, ""
        try:
            yield
        except (StepError, ToolError, subprocess.TimeoutExpired) as error:
            held, text = False, str(error)
            self.ok = False
            raise
        finally:
            took = time.monotonic() - began
            self.steps.append(
                {
                    "name": name, "ok": held, "seconds": round(took, 1),
                    "notes": list(world.notes), "error": text,
                }
            )  # fmt: skip
            for note in world.notes:
                print(f"             {note}", flush=True)
            print(f"             {'ok' if held else 'FAILED'} in {took:.1f} s", flush=True)


def plain_steps(world: World) -> Iterator[tuple[str, Callable[[], None]]]:
    load = Load(world)
    yield (
        "helm install, until three etcd, three bookies, two brokers are ready",
        lambda: plain.install(world),
    )
    yield "helm test", lambda: plain.helm_test(world)
    yield "messages by the official client, seen in REST", lambda: plain.first_messages(world)
    yield "load starts", load.start
    yield "pods are killed under load", lambda: plain.pods_are_killed(world, load)
    yield "upgrade and rollback under load", lambda: plain.upgrade_and_rollback(world, load)
    yield "no receipted message is lost", lambda: plain.nothing_was_lost(world, load)
    yield (
        "uninstall keeps the data, an install goes on with it",
        lambda: plain.uninstall_keeps_data(world),
    )
    yield "uninstall", lambda: plain.remove(world)


def operated_steps(world: World) -> Iterator[tuple[str, Callable[[], None]]]:
    load = Load(world)
    yield (
        "helm install with the operator, until the cluster is Ready",
        lambda: operated.install(world),
    )
    yield "kubectl apply of the samples, until all are Ready", lambda: operated.samples(world)
    yield "kubectl get says what REST says", lambda: operated.kubectl_tells_the_truth(world)
    yield "load starts", load.start
    yield "pods are deleted under load", lambda: plain.pods_are_killed(world, load)
    yield "brokers 2, 3, 2 under load", lambda: operated.scale_brokers(world, load)
    yield "bookies 3, 4, 3 under load", lambda: operated.scale_bookies(world, load)
    yield "bookies scaled by hand are put back", lambda: operated.scaled_by_hand(world)
    yield "a bookie gets a new volume under load", lambda: leaving.replace_volume(world, load)
    yield "bookies are evicted one at a time", lambda: leaving.evictions(world, load)
    yield "a new setting rolls the brokers", lambda: operated.new_setting(world, load)
    yield "the operator goes and comes back", lambda: operated.operator_goes(world, load)
    yield "no receipted message is lost", lambda: plain.nothing_was_lost(world, load)
    yield "a bookie that lies: no scale-down", lambda: operated.a_bookie_lies(world)
    yield "resources that are deleted go", lambda: operated.resources_go(world)
    yield "uninstall keeps volumes and CRDs", lambda: operated.uninstall(world)


def autoscaled_steps(world: World) -> Iterator[tuple[str, Callable[[], None]]]:
    load = Load(world)
    yield "helm install with the operator", lambda: operated.install(world)
    yield "load starts", lambda: load.start(topics=2)
    yield "an autoscaler for the brokers, down to one", lambda: autoscaled.begin(world)
    yield (
        "a step of load scales up, its end down",
        lambda: autoscaled.scales_up_and_down(world, load),
    )
    yield "no receipted message is lost", lambda: plain.nothing_was_lost(world, load)


def jobs_steps(world: World) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "helm install with the operator and a volume for cold data", lambda: jobs.install(world)
    yield "messages in closed ledgers", lambda: jobs.messages(world)
    yield "offload, by its sample; all is read again", lambda: jobs.offload(world)
    yield "compaction, by its sample", lambda: jobs.compact(world)
    yield "a threshold starts a compaction", lambda: jobs.compact_on_threshold(world)
    yield "the backlog's report, by its sample", lambda: jobs.backlog(world)
    yield "a schedule runs twice", lambda: jobs.schedule(world)


def closed_steps(world: World) -> Iterator[tuple[str, Callable[[], None]]]:
    load, issued = Load(world, role="load"), closed.Issued()
    shop = Load(world, closed.SHOP, "shop", "shop/orders")
    yield "helm install of a closed cluster with the operator", lambda: closed.install(world)
    yield "all ports are tried without credentials", lambda: closed.ports(world)
    yield "resources and roles", lambda: closed.resources(world)
    yield "a resource by address, with its own Secret", lambda: closed.by_address(world)
    yield "load starts", load.start
    yield "all Secrets are rotated", lambda: closed.rotate(world, issued)
    yield "load of a role that will lose its right", lambda: shop.start(topics=1)
    yield "a right is revoked under load", lambda: closed.revoke(world, load, shop)
    yield "the rotation completes under load", lambda: closed.rotated(world, load, issued)
    yield "no receipted message is lost", lambda: closed.nothing_was_lost(world, load)
    yield "uninstall", world.uninstall


def closing_steps(world: World) -> Iterator[tuple[str, Callable[[], None]]]:
    plain = Load(world, "load-plain")
    secured = Load(world, "load-tls")
    closed_load = Load(world, "load-token", role="shop")
    yield "helm install of an open cluster", lambda: closing.install(world)
    yield "load without TLS starts", lambda: plain.start(closing.TOPICS)
    yield "1: both, everywhere", lambda: closing.both_ports(world, plain)
    yield "2: clients change to TLS", lambda: closing.clients_with_tls(world, plain, secured)
    yield "3: no port without TLS", lambda: closing.tls_only(world, secured)
    yield "4, 5: tokens and rights", lambda: closing.tokens(world, secured, closed_load)
    yield "6: closed", lambda: closing.closes(world, closed_load)
    yield (
        "no receipted message is lost, no client had an error",
        lambda: closed.nothing_was_lost(world, closed_load),
    )
    yield "all ports are tried without credentials", lambda: closing.ports(world)
    yield "uninstall", lambda: closing.remove(world)


def closed_jobs_steps(world: World) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "helm install of a closed cluster", lambda: jobs.install_closed(world)
    yield "messages in closed ledgers", lambda: jobs.messages(world)
    yield "offload, by its sample; all is read again", lambda: jobs.offload(world)
    yield "the backlog's report, by its sample", lambda: jobs.backlog(world)


PARTS: Final = {
    "operated": (operated_steps, "demo"),
    "plain": (plain_steps, "my-cluster"),
    "autoscaled": (autoscaled_steps, "demo"),
    "jobs": (jobs_steps, "demo"),
    "closed": (closed_steps, "demo"),
    "closing": (closing_steps, "my-cluster"),
    "closed-jobs": (closed_jobs_steps, "demo"),
}
"""The steps, and the release's name: `demo` is what the samples refer to."""
ALWAYS: Final = ("operated", "plain")
"""Where no part is named: `autoscaled` takes its time, on a machine with little else to do; `jobs`
and `closed-jobs` need the image with Spark, which `with_cluster` builds for them alone."""


def last_words(world: World) -> None:
    """What pods said, where a step did not hold."""
    for args in (
        ("get", "pods", "-o", "wide"),
        ("get", "events", "--sort-by=.lastTimestamp", "--field-selector=type=Warning"),
        ("get", "pods", "--field-selector=status.phase=Pending", "-o", f"jsonpath={WAITS_FOR}"),
        ("get", "pvc"),
        *(
            ("logs", "--prefix", f"--tail={LOG_LINES}", "-l", f"app=magnetar,component={each}")
            for each in ("operator", "broker", "bookie")
        ),
        ("logs", f"--tail={LOG_LINES}", "-l", "app=load"),
        ("get", "mspark", "-o", "wide"),
    ):
        with suppress(subprocess.TimeoutExpired):
            done = world.kubectl.run(*args)
            print("\n".join(f"  {line[:300]}" for line in done.stdout.splitlines()[-SHOWN_LINES:]))


def run_part(name: str, report: Report, *, keep: bool) -> None:
    """Raises what the step that did not hold raised."""
    with connected() as api:
        namespace = fresh_namespace(api)
        kubectl, helm = tool("kubectl"), tool("helm")
        steps, cluster = PARTS[name]
        images = Images.of_environment()
        world = World(kubectl.within(namespace), helm.within(namespace), images, cluster)
        open_volumes(kubectl, world.images.magnetar)
        try:
            for text, act in steps(world):
                with report.step(world, f"{name}: {text}"):
                    act()
        except (StepError, ToolError, subprocess.TimeoutExpired) as error:
            print(f"\n{error}\n", flush=True)
            last_words(world)
            if not keep:
                # Cluster-wide objects, such as an APIService, do not go with the namespace.
                with suppress(StepError, ToolError, subprocess.TimeoutExpired):
                    world.uninstall()
            raise
        finally:
            if not keep:
                delete_namespace(api, namespace)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make e2e", description=__doc__)
    parser.add_argument(
        "--part",
        action="append",
        choices=sorted(PARTS),
        help="only this part; default: operated and plain",
    )
    parser.add_argument("--keep", action="store_true", help="leave the namespaces as they are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the report, for programs")
    parser.add_argument(
        "--if-possible", action="store_true", help="end with 0 where no Kubernetes runs containers"
    )
    return parser.parse_args()


def main() -> int:
    args = parse()
    if not capabilities().runs_containers:
        print(f"e2e: not run: {capabilities().text}")
        return 0 if args.if_possible else 2
    print(f"e2e: {capabilities().text}")
    report = Report()
    with suppress(StepError, ToolError, subprocess.TimeoutExpired):
        for name in args.part or ALWAYS:
            run_part(name, report, keep=args.keep)
    total = time.monotonic() - report.began
    if args.json:
        args.json.write_text(json.dumps({**asdict(report), "seconds": round(total, 1)}, indent=1))
    held = sum(bool(each["ok"]) for each in report.steps)
    print(f"\ne2e: {held} of {len(report.steps)} steps held, {total:.0f} s")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
