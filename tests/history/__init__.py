"""An independent checker of client histories, written from `docs/guarantees.md` alone."""
