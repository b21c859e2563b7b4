"""Observability of a process: log lines, metrics and health probes."""
