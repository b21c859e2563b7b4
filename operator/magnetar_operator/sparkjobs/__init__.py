"""Reconciles SparkJobs: `observe` reads, `plan` decides, `act` carries the plan out."""
