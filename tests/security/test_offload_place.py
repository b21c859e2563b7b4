"""Only super users choose where ledgers are offloaded to.

Brokers and jobs write there with the cluster's credentials. If an admin of a tenant could choose
the place, the credentials would work on any bucket, go to any address, and write to any folder.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from .rest import SUPER, SUPER_PROXY, Closed, closed_rest, reason_of

NAMESPACE = "~/namespaces/t1/n1/offloadPolicies"
TOPIC = "~/persistent/t1/n1/a/offloadPolicies"
DRIVER, BUCKET = "managedLedgerOffloadDriver", "managedLedgerOffloadBucket"
ENDPOINT, THRESHOLD = "managedLedgerOffloadServiceEndpoint", "managedLedgerOffloadThresholdInBytes"
OURS = {DRIVER: "aws-s3", BUCKET: "ours"}
PLACES: dict[str, dict[str, Any]] = {
    "folder": {DRIVER: "filesystem", "fileSystemURI": "/etc"},
    "bucket": {DRIVER: "aws-s3", BUCKET: "backups"},
    "address": {**OURS, ENDPOINT: "http://169.254.169.254"},
    "azure": {DRIVER: "azureblob", BUCKET: "ours", ENDPOINT: "https://attacker.example"},
}
SETTINGS: dict[str, Any] = {"offload_driver": "aws-s3", "offload_bucket": "ours"}


async def set_as(closed: Closed, role: str, path: str, value: dict[str, Any]) -> int:
    return (await closed.call(role, "POST", path, value)).status_code


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("path", [NAMESPACE, TOPIC])
async def test_a_tenants_admin_names_no_place(place: str, path: str) -> None:
    async with closed_rest(**SETTINGS) as closed:
        refused = await closed.call("ta", "POST", path, PLACES[place])
        assert refused.status_code == 403
        assert reason_of(refused).startswith("Only super users choose where ledgers are offloaded")
        proxied = await closed.call(
            SUPER_PROXY, "POST", path, PLACES[place], x_original_principal="ta"
        )
        assert proxied.status_code == 403
        assert await set_as(closed, SUPER, path, PLACES[place]) == 204


async def test_a_new_namespace_brings_no_place_along() -> None:
    async with closed_rest(**SETTINGS) as closed:
        info = {"adminRoles": ["ta"], "allowedClusters": ["standalone"]}
        await closed.service.resources.update_tenant("t1", info)
        body = {"offload_policies": PLACES["folder"]}
        refused = await closed.call("ta", "PUT", "~/namespaces/t1/made", body)
        assert refused.status_code == 403
        await closed.done("ta", "PUT", "~/namespaces/t1/made", {"offload_policies": OURS})
        await closed.done(SUPER, "PUT", "~/namespaces/t1/more", body)


async def test_all_else_is_the_tenants_affair() -> None:
    """Tools send the driver and the bucket along, so those in force are accepted."""
    async with closed_rest(**SETTINGS) as closed:
        for path in (NAMESPACE, TOPIC):
            assert await set_as(closed, "ta", path, {THRESHOLD: 1}) == 204
            assert await set_as(closed, "ta", path, {**OURS, THRESHOLD: 2}) == 204
        assert (await closed.call("ta", "DELETE", TOPIC)).status_code == 204


async def test_a_place_that_a_super_user_chose_can_be_kept(tmp_path: Path) -> None:
    chosen = {DRIVER: "filesystem", "fileSystemURI": str(tmp_path)}
    async with closed_rest(**SETTINGS) as closed:
        assert await set_as(closed, SUPER, NAMESPACE, chosen) == 204
        assert await set_as(closed, "ta", NAMESPACE, {**chosen, THRESHOLD: 5}) == 204
        async with asyncio.timeout(30):
            while await set_as(closed, "ta", TOPIC, {**chosen, THRESHOLD: 5}) != 204:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        elsewhere = {**chosen, "fileSystemURI": f"{tmp_path}/../other"}
        assert await set_as(closed, "ta", TOPIC, elsewhere) == 403
        assert await set_as(closed, "ta", NAMESPACE, OURS) == 204, "that of the settings"


async def test_the_refusal_is_in_the_audit_log(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    async with closed_rest(audit_log_file=file, **SETTINGS) as closed:
        await set_as(closed, "ta", NAMESPACE, PLACES["folder"])
    assert '"allowed": false' in file.read_text()


async def test_without_authorization_every_role_chooses() -> None:
    async with closed_rest(authorization_enabled=False, **SETTINGS) as closed:
        assert await set_as(closed, "ta", NAMESPACE, PLACES["bucket"]) == 204
