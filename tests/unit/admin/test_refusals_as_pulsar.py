"""Refusals equal those of a Pulsar 4.2.4 standalone for the same requests in the same order.

`pulsar-4.2.4.json` has a request per line: method, path, body and, if both answer the same,
Pulsar's status and reason. Requests without these only bring both to the same state. Clients match
the exact reasons. Refusals that differ are not in the file: Pulsar accepts more bodies, repeats the
texts of its classes, or had other topics because it had deleted idle ones.
"""

import json
from pathlib import Path

from .support import NO_BODY, Admin

GOLDEN = Path(__file__).parents[2] / "golden" / "admin" / "pulsar-4.2.4.json"


async def test_refusals_have_pulsars_texts(admin: Admin) -> None:
    compared = 0
    for method, path, body, *expected in json.loads(GOLDEN.read_text()):
        answer = await admin.call(method, path, NO_BODY if body is None else body)
        if not expected:
            continue
        actual = [answer.status_code, answer.json()["reason"]]
        assert actual == expected, f"{method} {path} {body}"
        compared += 1
    assert compared > 250
