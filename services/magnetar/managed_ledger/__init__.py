"""A topic's log: a list of ledgers, one of them writable, with the cursors that read it."""
