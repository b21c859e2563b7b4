"""Deduplication: a message that its producer sends again is stored only once.

`switch` turns it on and off as the policies say. `deduplication` is the topic's part while it is
on; it judges with `sequences` before an append and records ids after it. `snapshots` stores the ids
with a cursor of the topic (`codec_v1`), and `replay` reads the entries after the last snapshot when
the topic is loaded.
"""
