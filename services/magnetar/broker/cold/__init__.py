"""The broker's part in offload, whose work is done by jobs, and in compaction."""
