"""Starts the Spark session of a job: `local[*]` unless a master is given, with little logging.

An existing session, or a JVM started by spark-submit, is used as it is, with only `--conf` and
`--master` applied. Python workers use this interpreter. gRPC's fork handlers are disabled: the
process that becomes the JVM is forked while gRPC's threads run.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT: Final = "local[*]"
DRIVER_MEMORY_DEFAULT: Final = "1g"
SHUFFLE_PARTITIONS_PER_CORE: Final = 2
GATEWAY_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"
"""Set if spark-submit has started the JVM before Python."""
QUIET: Final = Path(__file__).with_name("log4j2.properties")
JAVA_MISSING: Final = (
    "Spark needs Java 17, which was not found. Type: apt-get install openjdk-17-jre-headless "
    "(or set JAVA_HOME to its folder)"
)


def prepare() -> None:
    """Sets the environment; call it before gRPC is imported."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


class Sessions:
    """Starts the job's session once, and stops it if the job started it."""

    def __init__(
        self, name: str, *, master: str = "", conf: Mapping[str, str], event_log: str = ""
    ) -> None:
        self._name = name
        self._master = master
        self._conf = dict(conf)
        self._event_log = event_log
        self._session: SparkSession | None = None
        self._own = False

    @property
    def wanted(self) -> bool:
        """Whether Spark was asked for by a flag, or runs already: then it does also small work."""
        asked = bool(self._master or self._conf or self._event_log)
        return asked or self._session is not None or GATEWAY_VARIABLE in os.environ or _is_active()

    def get(self) -> "SparkSession":
        """The session, started on first use. Raises PreconditionFailed without Java."""
        if self._session is None:
            self._session = self._started()
        return self._session

    def stop(self) -> None:
        """Stops the session if this object started it. Idempotent."""
        if self._session is not None and self._own:
            self._session.stop()
        self._session = None

    def _started(self) -> "SparkSession":
        from pyspark.sql import SparkSession

        if _is_active():  # of any thread's session
            return SparkSession.builder.getOrCreate()
        self._own = True
        submitted = GATEWAY_VARIABLE in os.environ
        if not submitted and not java():
            raise PreconditionFailed(JAVA_MISSING)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(self._name)
        for name, value in self._settings(submitted).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        if "spark.log.level" not in self._conf:
            session.sparkContext.setLogLevel("ERROR")
        return session

    def _settings(self, submitted: bool) -> dict[str, str]:
        """Spark's settings: flags override our defaults, which do not override spark-submit's."""
        settings = {
            "spark.sql.session.timeZone": "UTC",
            "spark.executorEnv.GRPC_ENABLE_FORK_SUPPORT": "0",
        }
        if not submitted:
            settings |= local_settings()
            settings["spark.master"] = self._master or MASTER_DEFAULT
        elif self._master:
            settings["spark.master"] = self._master
        if self._event_log:
            settings |= event_log_settings(self._event_log)
        return settings | self._conf


def _is_active() -> bool:
    """Whether this process has a Spark session. Does not import PySpark to find out."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def local_settings() -> dict[str, str]:
    """Settings for a driver in this process: bounded memory, no UI, loopback only."""
    return {
        "spark.driver.memory": DRIVER_MEMORY_DEFAULT,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={QUIET.as_uri()}",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS_PER_CORE * (os.cpu_count() or 1)),
    }


def event_log_settings(place: str) -> dict[str, str]:
    """Settings for an event log, from which Spark's UI can be shown, in a folder or at a URL.

    Creates the folder.
    """
    if "://" not in place and not place.startswith("file:"):
        folder = Path(place).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.as_uri()
    return {"spark.eventLog.enabled": "true", "spark.eventLog.dir": place}


def java() -> str | None:
    """The path of the JVM that Spark would start; None without one."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return shutil.which(str(Path(home) / "bin" / "java"))
    return shutil.which("java")
