"""SparkJobs: the planner and what it asks for.

`plan` is pure; `handlers` looks, acts and tells.
"""
