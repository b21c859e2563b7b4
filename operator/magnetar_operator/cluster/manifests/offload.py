"""Builds the cold store's settings and volume for the pods of brokers and Spark jobs."""

from typing import Final

from magnetar_operator.kube.kinds import Object
from magnetar_operator.models.cluster_parts import Offload

DIRECTORY: Final = "/var/lib/magnetar/offload"
"""The mount path of the store, if it is a volume."""
VOLUME: Final = "offload"


def offload_settings(offload: Offload | None) -> dict[str, str]:
    """The settings, by Pulsar's keys of broker.conf."""
    if offload is None:
        return {}
    settings = {"managedLedgerOffloadDriver": offload.driver}
    if offload.driver == "filesystem":
        return {**settings, "fileSystemURI": f"file://{DIRECTORY}"}
    values = {
        "managedLedgerOffloadBucket": offload.bucket,
        "managedLedgerOffloadRegion": offload.region,
        "managedLedgerOffloadServiceEndpoint": offload.endpoint,
    }
    return {**settings, **{key: value for key, value in values.items() if value is not None}}


def store_environment(offload: Offload) -> list[Object]:
    """Variables for the store's SDK, for jobs that know only the name of the bucket."""
    if offload.driver not in ("S3", "aws-s3"):
        return []
    values = {"AWS_ENDPOINT_URL": offload.endpoint, "AWS_REGION": offload.region}
    return [{"name": name, "value": value} for name, value in values.items() if value is not None]


def offload_volume(offload: Offload | None) -> tuple[list[Object], list[Object]]:
    """The volumes of a pod, and the mounts of its container."""
    if offload is None or offload.volume_claim is None:
        return [], []
    claim = {"claimName": offload.volume_claim.name}
    return (
        [{"name": VOLUME, "persistentVolumeClaim": claim}],
        [{"name": VOLUME, "mountPath": DIRECTORY}],
    )
