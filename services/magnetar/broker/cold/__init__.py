"""The broker's part in offload and compaction, whose work is done by jobs."""
