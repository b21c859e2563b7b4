"""The models of SparkJob: offload, compaction and backlog analytics, once or by schedule."""
# ruff: noqa: RUF012 (msgspec gives each struct its own copy of an empty default)

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from magnetar_operator.models.base import (
    Cel,
    ClusterRef,
    Duration,
    LocalRef,
    Model,
    Quantity,
    Raw,
    Seen,
    ShortText,
    Status,
)

STARTING_DEADLINE_S_MIN: Final = 10
"""The interval at which Kubernetes' controller checks schedules."""
FAILED_PAUSE_FACTOR: Final = 6
CRON_FIELD = r"[-*/,0-9A-Za-z]+"


class Selection(Model, frozen=True, kw_only=True):
    """The topics of a job: the union of all that is named."""

    namespaces: Annotated[
        list[Annotated[str, Meta(pattern=r"^[-=:.\w]+/[-=:.\w]+$", max_length=1_024)]],
        Meta(description="All topics of these namespaces, each TENANT/NAME.", max_length=256),
    ] = []
    topics: Annotated[
        list[ShortText],
        Meta(description="Full names of topics, such as persistent://shop/orders/created.",
             max_length=1_000),
    ] = []  # fmt: skip


class Process(Model, frozen=True, kw_only=True):
    """A driver or an executor."""

    cores: Annotated[
        int, Meta(ge=1, le=256, description="The number of tasks that it runs at the same time.")
    ] = 1
    cpu_request: Annotated[
        Quantity | None,
        Meta(
            description="The CPU that is reserved for its pod. Default: one for each of its cores."
        ),
    ] = None
    memory: Annotated[
        Quantity,
        Meta(
            description="The memory of its pod. Half is the heap of the JVM, half is for Python "
            "and the rest; spark.driver.memory and spark.executor.memory in sparkConf "
            "override the heap."
        ),
    ] = "1Gi"
    node_selector: Annotated[
        dict[str, str], Meta(description="Labels that its node must have.", max_length=64)
    ] = {}
    tolerations: Annotated[
        list[Raw], Meta(description="As a Pod's spec.tolerations.", max_length=64)
    ] = []


class Executors(Process, frozen=True, kw_only=True):
    """The executors."""

    instances: Annotated[int, Meta(ge=1, le=1_000, description="The number of executors.")] = 2


class Retries(Model, frozen=True, kw_only=True):
    """Retries after a failure."""

    backoff_limit: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="How often a failed run is retried: after 10 s, 20 s and so on, at most "
            "six minutes. Wrong arguments are not retried. A pod that Kubernetes "
            "removed (a drained node) is replaced without being counted.",
        ),
    ] = 2


class OnThreshold(Model, frozen=True, kw_only=True):
    """Runs that brokers cause, by the thresholds of compaction and offload."""

    pause: Annotated[
        Duration,
        Meta(
            description="The least time from the end of a run to the start of the next one; after "
            f"a run that failed, {FAILED_PAUSE_FACTOR} times as long."
        ),
    ] = "10m"


class SparkJobSpec(Model, frozen=True, kw_only=True):
    """The desired state of a SparkJob: the job, its topics, and its schedule."""

    cluster_ref: Annotated[
        ClusterRef | None,
        Meta(
            description="Its MagnetarCluster. Default: the only one of this Kubernetes namespace."
        ),
    ] = None
    type: Annotated[
        Literal["Offload", "Compact", "Backlog"],
        Meta(
            description="Offload: moves closed ledgers to object storage. Compact: keeps the last "
            "message of each key. Backlog: reports the backlog of each subscription "
            "and its age. It cannot be changed."
        ),
    ]
    selection: Annotated[
        Selection, Meta(description="The topics; if none are named, all of the cluster.")
    ] = Selection()
    schedule: Annotated[
        Annotated[
            str,
            Meta(pattern=rf"^(@(hourly|daily|weekly|monthly)|{CRON_FIELD}( +{CRON_FIELD}){{4}})$",
                 max_length=256),
        ]
        | None,
        Meta(
            description="When it runs, in the five fields of cron (minute hour day month "
            "weekday), in UTC unless timeZone is set. Without schedule and onThreshold it runs "
            "once, immediately.",
            examples=["0 3 * * *", "@hourly"],
        ),
    ] = None  # fmt: skip
    time_zone: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="The time zone of schedule, such as Europe/Berlin."),
    ] = None
    starting_deadline: Annotated[
        Duration | None,
        Meta(
            description="How late a run of the schedule may start, 10s or more; after that it is "
            "skipped. Default: the last missed run is started."
        ),
    ] = None
    on_threshold: Annotated[
        OnThreshold | None,
        Meta(
            description="It runs whenever brokers report a topic of its selection that waits for a "
            "job: for Compact a topic that is requested or above compactionThreshold, and too "
            "large for its broker; for Offload a topic with a closed ledger that is requested or "
            "beyond a threshold of its offload policies. One run at a time."
        ),
    ] = None
    suspend: Annotated[
        bool, Meta(description="While true, no run is started; runs in progress continue.")
    ] = False
    concurrency_policy: Annotated[
        Literal["Forbid", "Replace", "Allow"],
        Meta(
            description="The rule for a run that is due while one is in progress. Forbid: it is "
            "skipped. Replace: the running one is stopped. Allow: both run."
        ),
    ] = "Forbid"
    image: Annotated[
        Annotated[str, Meta(max_length=1_024)] | None,
        Meta(description="The image with Spark. Default: the operator's own setting."),
    ] = None
    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"],
        Meta(description="When nodes pull the image."),
    ] = "IfNotPresent"
    image_pull_secrets: Annotated[
        list[LocalRef],
        Meta(
            description="Secrets to pull images with. Default: those of the MagnetarCluster, if "
            "it is in the same Kubernetes namespace.",
            max_length=16,
        ),
    ] = []
    service_account_name: Annotated[
        Annotated[str, Meta(max_length=253)] | None,
        Meta(
            description="The ServiceAccount of the driver, which creates the executors' pods. "
            "Default: the operator creates one."
        ),
    ] = None
    driver: Annotated[Process, Meta(description="The driver.")] = Process()
    executor: Annotated[Executors, Meta(description="The executors.")] = Executors()
    options: Annotated[
        dict[str, int | Annotated[str, Meta(max_length=4_096)]],
        Meta(
            description="Options of the job as `magnetar job TYPE --help` lists them, without the "
            'dashes: max-ledgers: 100. A flag is on with the text "true".',
            max_length=256,
        ),
    ] = {}
    spark_conf: Annotated[
        dict[str, int | Annotated[str, Meta(max_length=4_096)]],
        Meta(
            description="Spark's own settings, spark.…, except those that it needs to work in "
            "Kubernetes.",
            max_length=256,
        ),
    ] = {}
    credentials: Annotated[
        LocalRef | None,
        Meta(
            description="A Secret whose keys become environment variables of the pods, such as "
            "AWS_ACCESS_KEY_ID. Default: spec.offload.credentials of the "
            "MagnetarCluster, if it is in the same Kubernetes namespace."
        ),
    ] = None
    event_log_claim: Annotated[
        LocalRef | None,
        Meta(
            description="A PersistentVolumeClaim for the drivers' event logs, for Spark's history "
            "server."
        ),
    ] = None
    retries: Annotated[Retries, Meta(description="Retries after a failure.")] = Retries()
    timeout: Annotated[
        Duration,
        Meta(
            description="The time that a run may take, with all its attempts, before it is stopped."
        ),
    ] = "1h"
    history_limit: Annotated[
        int, Meta(ge=0, le=100, description="The number of finished runs that are kept.")
    ] = 5

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel("self.type == oldSelf.type", "type cannot be changed: make a new SparkJob", ".type"),
        Cel(
            "has(self.schedule) == has(oldSelf.schedule)",
            "a job that runs once cannot become one with a schedule, nor the reverse: make a new "
            "SparkJob",
            ".schedule",
        ),
        Cel(
            "has(self.onThreshold) == has(oldSelf.onThreshold)",
            "a job that runs once cannot become one with onThreshold, nor the reverse: make a new "
            "SparkJob",
            ".onThreshold",
        ),
        Cel(
            "!has(self.onThreshold) || !has(self.schedule)",
            "onThreshold excludes schedule: make two SparkJobs",
            ".onThreshold",
        ),
        Cel(
            "!has(self.onThreshold) || self.type != 'Backlog'",
            "onThreshold is for Compact and Offload: a backlog report has no threshold; set "
            "schedule",
            ".onThreshold",
        ),
        Cel(
            "!has(self.onThreshold) || self.?concurrencyPolicy.orValue('Forbid') == 'Forbid'",
            "with onThreshold, concurrencyPolicy must be Forbid: a topic waits until the run that "
            "handles it has ended",
            ".concurrencyPolicy",
        ),
        Cel(
            "!has(self.timeZone) || has(self.schedule)",
            "timeZone is for a schedule: a job that runs once runs at once",
            ".timeZone",
        ),
        Cel(
            "!has(self.startingDeadline) || has(self.schedule)",
            "startingDeadline is for a schedule: a job that runs once runs at once",
            ".startingDeadline",
        ),
        Cel(
            "!has(self.startingDeadline) || "
            "!string(self.startingDeadline).matches('^(0[a-z]*|[1-9]s?|[1-9][0-9]{0,3}ms)$')",
            f"startingDeadline must be {STARTING_DEADLINE_S_MIN} s or more: Kubernetes looks at "
            "schedules every 10 s, and would never start a run that is late by then",
            ".startingDeadline",
        ),
    )


class Run(Seen, frozen=True, kw_only=True):
    """One run of a SparkJob."""

    name: Annotated[
        ShortText, Meta(description="The name of its Job: `kubectl logs job/NAME` has its output.")
    ]
    state: Annotated[
        Literal["Starting", "Running", "Succeeded", "Failed", "Stopped"],
        Meta(description="The state. Stopped: its Job was deleted while it ran."),
    ] = "Starting"
    attempt: Annotated[int, Meta(description="The number of the attempt, from 1.")] = 1
    started_at: Annotated[str | None, Meta(description="When it began, RFC 3339.")] = None
    ended_at: Annotated[str | None, Meta(description="When it ended, RFC 3339.")] = None
    message: Annotated[ShortText, Meta(description="The result, or why it failed or waits.")] = ""
    spec: Annotated[
        ShortText, Meta(description="A digest of the spec of the run, to detect changes.")
    ] = ""
    result: Annotated[
        dict[str, Any] | None,
        Meta(description="Figures that the job reported: topics, ledgers, bytes."),
    ] = None


class SparkJobStatus(Status, frozen=True, kw_only=True):
    """The observed state of a SparkJob."""

    phase: Annotated[
        Literal[
            "", "Waiting", "Scheduled", "Watching", "Running", "Succeeded", "Failed", "Suspended"
        ],
        Meta(description="The state in one word."),
    ] = ""  # fmt: skip
    cluster: Annotated[ShortText, Meta(description="Its MagnetarCluster.")] = ""
    last_run_at: Annotated[str | None, Meta(description="When the last run began, RFC 3339.")] = (
        None
    )
    last_success_at: Annotated[
        str | None, Meta(description="When a run last succeeded, RFC 3339.")
    ] = None
    next_run_at: Annotated[
        str | None,
        Meta(
            description="When the next run is due, RFC 3339; in the past while it waits for the "
            "one before."
        ),
    ] = None
    last_request: Annotated[
        str | None,
        Meta(description="The value of the annotation magnetar.io/run that was last carried out."),
    ] = None
    last_threshold_run: Annotated[
        str | None,
        Meta(description="The request of the last run that a threshold started."),
    ] = None
    active: Annotated[int, Meta(description="The number of runs in progress.")] = 0
    runs: Annotated[
        list[Run], Meta(description="The last runs, the newest first.", max_length=200)
    ] = []
