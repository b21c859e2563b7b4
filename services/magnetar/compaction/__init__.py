"""Compacted topics: the latest value of each key as files in object stores, and reading them."""
