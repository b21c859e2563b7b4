"""Splits of a bundle that the server chooses."""

import pytest

from magnetar.core.hashing import bundle_hash

from .support import Admin

NO_HOT = (
    "Splitting the HOT bundle is not supported: choose LARGEST, or name the bundle that "
    "broker-stats topics shows with the highest rates"
)
NAMESPACE = "~/namespaces/t1/n2"


async def boundaries(admin: Admin) -> list[int]:
    shown = (await admin.done("GET", f"{NAMESPACE}/bundles")).json()["boundaries"]
    return [int(position, 16) for position in shown]


async def test_the_bundle_with_the_most_topics_is_split(admin: Admin) -> None:
    await admin.done("PUT", NAMESPACE, {"bundles": {"numBundles": 2}})
    high = [n for n in range(40) if bundle_hash(f"persistent://t1/n2/x{n}") >= 1 << 31]
    low = sorted({*range(40)} - {*high})
    for number in (*high[:3], *low[:2]):
        await admin.done("PUT", f"~/persistent/t1/n2/x{number}")
    await admin.done("PUT", f"{NAMESPACE}/LARGEST/split")
    assert await boundaries(admin) == [0, 0x80000000, 0xBFFFFFFF, 0xFFFFFFFF]


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("~/namespaces/t1/n1/LARGEST/split", 404, "Bundle range LARGEST not found"),
        ("~/namespaces/t1/no/LARGEST/split", 404, "Namespace not found"),
        (
            *("~/namespaces/t1/n1/HOT/split", 405),
            NO_HOT,
        ),
    ],
)
async def test_refused_choices(admin: Admin, path: str, status: int, reason: str) -> None:
    answer = await admin.call("PUT", path)
    assert (answer.status_code, answer.json()) == (status, {"reason": reason})
