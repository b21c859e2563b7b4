"""Where cold data lives, as brokers' and Spark jobs' pods are told: environment, and a volume."""

from typing import Final

from magnetar_operator.api_kinds import Object
from magnetar_operator.models.cluster_parts import Offload

DIRECTORY: Final = "/var/lib/magnetar/offload"
"""Of the volume, where the store is one."""
VOLUME: Final = "offload"


def offload_settings(offload: Offload | None) -> dict[str, str]:
    """By Pulsar's keys of broker.conf."""
    if offload is None:
        return {}
    found = {"managedLedgerOffloadDriver": offload.driver}
    if offload.driver == "filesystem":
        return {**found, "fileSystemURI": f"file://{DIRECTORY}"}
    given = {
        "managedLedgerOffloadBucket": offload.bucket,
        "managedLedgerOffloadRegion": offload.region,
        "managedLedgerOffloadServiceEndpoint": offload.endpoint,
    }
    return {**found, **{key: value for key, value in given.items() if value is not None}}


def store_environment(offload: Offload) -> list[Object]:
    """For what stores' own tools read: where a bucket is that a job is told of by name alone."""
    if offload.driver not in ("S3", "aws-s3"):
        return []
    given = {"AWS_ENDPOINT_URL": offload.endpoint, "AWS_REGION": offload.region}
    return [{"name": name, "value": value} for name, value in given.items() if value is not None]


def offload_volume(offload: Offload | None) -> tuple[list[Object], list[Object]]:
    """Volumes of a pod, and mounts of its container."""
    if offload is None or offload.volume_claim is None:
        return [], []
    claim = {"claimName": offload.volume_claim.name}
    return (
        [{"name": VOLUME, "persistentVolumeClaim": claim}],
        [{"name": VOLUME, "mountPath": DIRECTORY}],
    )
