"""The write cache and its flushes, the read cache, and the reader that uses both."""
