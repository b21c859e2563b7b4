"""Compaction and offload: what jobs on Spark and brokers share of them."""
