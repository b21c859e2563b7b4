"""The demo's last words: what held, how fast, and what happened on the way."""

from magnetar.cli.demo.checker import Verdict
from magnetar.cli.demo.progress import Progress

_PROMISES = {
    "lost": "nothing receipted was lost",
    "unreceipted": "every message got its receipt",
    "reordered": "the messages of each key were first seen in order",
    "phantom": "nothing was made up",
    "altered": "every byte arrived as it was sent",
    "id went back": "the message ids of each partition only grew",
}


def rates(progress: Progress, verdict: Verdict) -> tuple[float, float]:
    """Messages per second: published to the last receipt, consumed to the last first sighting."""
    published = verdict.receipted / progress.receipted_all_s if progress.receipted_all_s else 0.0
    consumed = verdict.seen / progress.seen_all_s if progress.seen_all_s else 0.0
    return published, consumed


def as_text(verdict: Verdict, progress: Progress, failure: str) -> str:
    """For people."""
    published, consumed = rates(progress, verdict)
    lines = [""]
    for kind, promise in _PROMISES.items():
        count = verdict.faults.get(kind, 0)
        lines.append(f"  {'ok ' if not count else 'NO '} {promise}" + (f": {count}" * bool(count)))
    lines += [f"      {example}" for example in verdict.examples]
    if failure:
        lines.append(f"  NO  the demo came to its end: {failure}")
    restarts = ", ".join(f"{seconds:.2f}" for seconds in progress.restart_s) or "none"
    flowing = ", ".join(f"{seconds:.2f}" for seconds in progress.recovery_s) or "none"
    counts = f"{verdict.receipted:,} of {verdict.published:,} receipted, {verdict.seen:,} seen"
    came = f"{progress.consumers_joined} came, {progress.consumers_left} left"
    lines += [
        "",
        f"  {counts}, {verdict.redelivered:,} seen again",
        f"  published at {published:,.0f}/s, consumed at {consumed:,.0f}/s, kills included",
        f"  {progress.server_kills} times kill -9 of the server; ready again after (s): {restarts}",
        f"  messages flowing again after (s): {flowing}",
        f"  consumers: {came}, {progress.consumers_killed} were killed",
    ]
    return "\n".join(lines)


def as_json(verdict: Verdict, progress: Progress, failure: str) -> dict[str, object]:
    """For programs."""
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
