"""Transactions as the metadata store and the log show them, for brokers and for jobs."""
