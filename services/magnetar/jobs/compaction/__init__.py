"""Compaction of one topic: which messages survive, the files, and how they become live."""
