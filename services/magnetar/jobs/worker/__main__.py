"""The program of a worker process."""

from magnetar.jobs.worker.child import main

main()
