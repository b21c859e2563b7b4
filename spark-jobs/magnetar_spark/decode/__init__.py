"""From stored entries to Arrow: metadata, decompression, batches, chunks, schemas."""
