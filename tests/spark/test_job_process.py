"""A job as a process: in an existing Spark session, and ended by a signal."""

import json
import signal
import socket
import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from magnetar_spark.jobs.session import Sessions


def test_a_session_that_is_there_is_used_and_left(spark: SparkSession) -> None:
    sessions = Sessions("test", conf={})
    assert sessions.get().sparkContext is spark.sparkContext
    sessions.stop()
    assert spark.range(3).count() == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_job(number: signal.Signals, code: int) -> None:
    """The job waits for a metadata store that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        command = [sys.executable, "-m", "magnetar.cli.main", "job", "offload", "--all", "--json"]
        command += ["--metadata-url", f"etcd:http://127.0.0.1:{port}", "--no-progress"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(number)
                output, _ = process.communicate()
        finally:
            process.kill()
            process.wait()
    assert process.returncode == code
    found = json.loads(output)
    assert (found["state"], found["error"]) == ("failed", f"interrupted by {number.name}")
