"""The errors for paths and methods that no route serves.

Tools show the reason to people, so it names the feature of Pulsar that is missing, not the path.
"""

import re
from typing import Final

FUNCTIONS_STATUS: Final = 409
"""Pulsar's status if its function worker is off; tools expect it."""

_FUNCTIONS = re.compile(r"/admin/v[23]/(functions|function|sinks|sink|sources|source|worker)")
_POLICY = re.compile(r"/admin/v2/(namespaces|persistent|non-persistent)/[^/]+/.+/(\w+)$")
_PARTS: Final = (
    (re.compile(r"/admin/v3/packages"), "Packages are"),
    (re.compile(r"/admin/v3/transactions"), "This operation of transactions is"),
    (re.compile(r"/admin/v2/(non-)?persistent/[^/]+/[^/]+/[^/]+/.+"), "This topic operation is"),
    (re.compile(r"/admin/v2/namespaces/[^/]+/[^/]+/.+"), "This namespace operation is"),
    (
        re.compile(
            r"/admin/(persistent|non-persistent|namespaces|properties|clusters|brokers|bookies"
            r"|broker-stats|resource-quotas|schemas)"
        ),
        "The V1 API is",
    ),
    (re.compile(r"/topics/(non-)?persistent/"), "Producing and consuming over REST is"),
    (re.compile(r"/lookup/v2/destination"), "The V1 API is"),
)


def refusal(method: str, path: str, status: int, allowed: str) -> tuple[int, str]:
    """Returns the status and the reason for a request that no route serves."""
    if match := _FUNCTIONS.match(path):
        return FUNCTIONS_STATUS, (
            f"Pulsar Function Worker is not enabled: functions and IO connectors ({match[1]}) "
            "are not offered"
        )
    if status == 405 and allowed == "GET" and (match := _POLICY.match(path)):
        return 405, f"{match[2]} cannot be changed yet; offered: GET"
    if status == 405 and allowed:
        return 405, f"{method} is not offered on {path}; offered: {allowed}"
    for pattern, feature in _PARTS:
        if pattern.match(path):
            return status, f"{feature} not offered: {method} {path}"
    return status, f"No such path: {method} {path}; /docs lists what is offered"
