"""The script for `spark-submit [OPTIONS] .../magnetar_spark/jobs/submit.py KIND ARGS`.

The master and the memory are then options of spark-submit. Its exit code is the job's.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts the script's folder first, whose modules have common names such as `session`.
    folder = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != folder]
    from magnetar_spark.jobs.main import main

    sys.exit(main(prog="submit.py"))
