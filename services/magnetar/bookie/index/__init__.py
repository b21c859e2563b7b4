"""The index of entries and the state of each ledger."""
