"""Reads topics' logs straight from bookies and files, without Spark, brokers or subscriptions."""
