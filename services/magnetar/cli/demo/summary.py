"""The demo's summary: the checks, the rates, and the kills and changes."""

from magnetar.cli.demo.checker import Verdict
from magnetar.cli.demo.progress import Progress

_PROMISES = {
    "lost": "no receipted message was lost",
    "unreceipted": "every message got its receipt",
    "reordered": "the messages of each key were first received in order",
    "phantom": "no message was invented",
    "altered": "every byte arrived as it was sent",
    "id went back": "the message ids of each partition increased",
}


def rates(progress: Progress, verdict: Verdict) -> tuple[float, float]:
    """Messages per second: published until the last receipt, consumed until the last arrival."""
    published = verdict.receipted / progress.receipted_all_s if progress.receipted_all_s else 0.0
    consumed = verdict.seen / progress.seen_all_s if progress.seen_all_s else 0.0
    return published, consumed


def as_text(verdict: Verdict, progress: Progress, failure: str) -> str:
    """The summary as text."""
    published, consumed = rates(progress, verdict)
    lines = [""]
    for kind, promise in _PROMISES.items():
        count = verdict.faults.get(kind, 0)
        lines.append(f"  {'ok ' if not count else 'NO '} {promise}" + (f": {count}" * bool(count)))
    lines += [f"      {example}" for example in verdict.examples]
    if failure:
        lines.append(f"  NO  the demo completed: {failure}")
    restarts = ", ".join(f"{seconds:.2f}" for seconds in progress.restart_s) or "none"
    flowing = ", ".join(f"{seconds:.2f}" for seconds in progress.recovery_s) or "none"
    counts = f"{verdict.receipted:,} of {verdict.published:,} receipted, {verdict.seen:,} received"
    changes = f"{progress.consumers_joined} joined, {progress.consumers_left} left"
    lines += [
        "",
        f"  {counts}, {verdict.redelivered:,} redelivered",
        f"  published at {published:,.0f}/s, consumed at {consumed:,.0f}/s, kills included",
        f"  server killed {progress.server_kills} times with -9; ready again after (s): {restarts}",
        f"  messages flowing again after (s): {flowing}",
        f"  consumers: {changes}, {progress.consumers_killed} were killed",
    ]
    return "\n".join(lines)


def as_json(verdict: Verdict, progress: Progress, failure: str) -> dict[str, object]:
    """The summary as a JSON object."""
    published, consumed = rates(progress, verdict)
    return {
        "ok": verdict.ok and not failure,
        "failure": failure,
        "published": verdict.published,
        "receipted": verdict.receipted,
        "seen": verdict.seen,
        "seen_again": verdict.redelivered,
        "faults": verdict.faults,
        "examples": verdict.examples,
        "publish_rate": round(published, 1),
        "consume_rate": round(consumed, 1),
        "server_kills": progress.server_kills,
        "restart_s": [round(seconds, 3) for seconds in progress.restart_s],
        "recovery_s": [round(seconds, 3) for seconds in progress.recovery_s],
        "consumers_joined": progress.consumers_joined,
        "consumers_left": progress.consumers_left,
        "consumers_killed": progress.consumers_killed,
    }
