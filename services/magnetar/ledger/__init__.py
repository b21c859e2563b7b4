"""One ledger: an append-only sequence of entries on bookies, with one writer and many readers."""
