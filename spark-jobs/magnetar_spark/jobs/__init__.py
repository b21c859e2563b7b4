"""Jobs over the log: `magnetar job KIND`, or `spark-submit .../jobs/submit.py KIND`."""
