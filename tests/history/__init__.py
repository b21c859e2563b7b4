"""An independent checker of client histories, written from docs/understand/guarantees.md."""
