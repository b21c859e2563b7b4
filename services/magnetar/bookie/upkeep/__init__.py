"""Periodic work of a bookie: flushes by age, disk limits, garbage of ledgers and copies."""
