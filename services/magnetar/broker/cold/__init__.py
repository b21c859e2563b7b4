"""The broker's part in offload, which a standalone runs itself, and in compaction."""
