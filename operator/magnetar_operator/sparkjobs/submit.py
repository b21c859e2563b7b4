"""Builds the driver's command: spark-submit in client mode, with the job's arguments. Pure: no IO.

Values of `sparkConf` override our defaults. They may not name the settings that the driver needs to
work in Kubernetes. Texts of users are escaped, because Kubernetes expands `$(NAME)`.
"""

import re
from collections.abc import Mapping
from typing import Final

from magnetar_operator.engine.differences import amount
from magnetar_operator.models.sparkjob import Process
from magnetar_operator.sparkjobs.desired import EXECUTOR, Job, Place

MASTER: Final = "k8s://https://kubernetes.default.svc"
PROGRAM: Final = "local:///opt/magnetar/app/magnetar_spark/jobs/submit.py"
TERMINATION_MESSAGE: Final = "/dev/termination-log"
TEMPLATE_FILE: Final = "/etc/magnetar/executor.json"
EVENT_LOG_DIR: Final = "/var/spark-events"
EXECUTOR_CONTAINER: Final = "executor"
DRIVER_PORT: Final = 7078
BLOCKS_PORT: Final = 7079
UI_PORT: Final = 4040
HEAP_SHARE: Final = 0.5
"""The JVM heap, as a share of a pod's memory."""
HEAP_BYTES_MIN: Final = 471_859_200
"""Spark does not start with less."""
MIB: Final = 1 << 20

_OPTION: Final = re.compile(r"[a-z][a-zA-Z0-9]*(-[a-z0-9]+)*")
_OURS: Final = frozenset(
    {
        "topic", "namespace", "tenant", "all", "metadata-url", "admin-url", "master", "conf",
        "event-log", "json", "no-progress", "termination-message",
    }
)  # fmt: skip
"""Options of jobs that other fields of the spec set."""


class BadSpec(ValueError):
    """The spec cannot be carried out; the text names the field and the fix."""


def arguments(job: Job, place: Place) -> list[str]:
    """The arguments of the driver's container. Raises BadSpec."""
    words = ["driver", "--master", MASTER, "--name", job.name]
    for key, value in conf(job).items():
        words += ["--conf", f"{key}={value}"]
    return [*words, PROGRAM, *job_arguments(job, place)]


def conf(job: Job) -> dict[str, str]:
    """Spark's settings. Raises BadSpec."""
    fixed = _fixed(job)
    given = {key: literal(str(value)) for key, value in job.spec.spark_conf.items()}
    for key in given:
        if not key.startswith("spark."):
            raise BadSpec(f"spec.sparkConf: {key!r} is not a setting of Spark: these begin with "
                          "spark.")  # fmt: skip
        if key in fixed or key.startswith("spark.kubernetes.authenticate."):
            raise BadSpec(f"spec.sparkConf: {key} is set by the operator: leave it out")
    return {**_defaults(job), **given, **fixed}


def _defaults(job: Job) -> dict[str, str]:
    spec = job.spec
    executor = spec.executor
    driver_heap = heap_mib("spec.driver", spec.driver, spec.spark_conf, "spark.driver.memory")
    heap = heap_mib("spec.executor", executor, spec.spark_conf, "spark.executor.memory")
    defaults = {
        "spark.driver.memory": f"{driver_heap}m",
        "spark.executor.instances": str(executor.instances),
        "spark.executor.cores": str(executor.cores),
        "spark.executor.memory": f"{heap}m",
        "spark.executor.memoryOverhead": f"{memory_mib(executor) - heap}m",
        "spark.ui.showConsoleProgress": "false",
        # Other processes that reach the pods cannot join the job.
        "spark.authenticate": "true",
    }
    if executor.cpu_request is not None:
        defaults["spark.kubernetes.executor.request.cores"] = str(executor.cpu_request)
    return defaults


def _fixed(job: Job) -> dict[str, str]:
    fixed = {
        "spark.kubernetes.namespace": job.namespace,
        "spark.kubernetes.container.image": job.image,
        "spark.kubernetes.container.image.pullPolicy": job.spec.image_pull_policy,
        # This pod owns the executors, so Kubernetes deletes them after it.
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.driver.host": "$(SPARK_DRIVER_BIND_ADDRESS)",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCKS_PORT),
        "spark.kubernetes.executor.podTemplateFile": TEMPLATE_FILE,
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
        # With these settings the driver needs rights on pods only.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
    }
    for key, value in job.pod_labels(EXECUTOR).items():
        fixed[f"spark.kubernetes.executor.label.{key}"] = value
    return fixed


def job_arguments(job: Job, place: Place) -> list[str]:
    """The arguments of magnetar_spark's program. Raises BadSpec."""
    spec, selection = job.spec, job.spec.selection
    words = [spec.type.lower()]
    words += [f"--topic={literal(topic)}" for topic in selection.topics]
    words += [f"--namespace={literal(name)}" for name in selection.namespaces]
    if not selection.topics and not selection.namespaces:
        words.append("--all")
    words += [f"--metadata-url={place.metadata_url}", f"--admin-url={place.admin_url}"]
    words += ["--json", "--no-progress", f"--termination-message={TERMINATION_MESSAGE}"]
    if spec.event_log_claim is not None:
        words.append(f"--event-log={EVENT_LOG_DIR}")
    if spec.type == "Compact" and "parallelism" not in spec.options:
        # The job would use the number of its own cores, which are the driver's.
        words.append(f"--parallelism={spec.executor.instances * spec.executor.cores}")
    return words + options(spec.options)


def options(given: Mapping[str, int | str]) -> list[str]:
    """Options (`max-ledgers` or `maxLedgers`) as arguments. Raises BadSpec."""
    words: list[str] = []
    for key, value in given.items():
        if not _OPTION.fullmatch(key):
            raise BadSpec(
                f"spec.options: {key!r} must be the name of an option, such as max-ledgers"
            )
        name = re.sub(r"[A-Z]", lambda match: f"-{match[0].lower()}", key)
        if name in _OURS:
            raise BadSpec(f"spec.options: another field of the spec sets {key}: leave it out")
        if value in ("true", "false"):
            words += [f"--{name}"] if value == "true" else []
        else:
            words.append(f"--{name}={literal(str(value))}")
    return words


def memory_mib(process: Process) -> int:
    """The memory of the process's pod, in MiB."""
    return int(amount(process.memory) or 0) // MIB


def heap_mib(where: str, process: Process, given: Mapping[str, object], key: str) -> int:
    """The heap of the process's JVM, in MiB. Raises BadSpec if it is too small for Spark."""
    heap = int(memory_mib(process) * HEAP_SHARE)
    if key not in given and heap * MIB < HEAP_BYTES_MIN:
        least = int(HEAP_BYTES_MIN / HEAP_SHARE / MIB)
        raise BadSpec(f"{where}.memory: {process.memory} is too little: Spark needs {least}Mi")
    return heap


def literal(text: str) -> str:
    """Escapes a text, because Kubernetes expands `$(NAME)`."""
    return text.replace("$", "$$")
