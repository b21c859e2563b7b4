"""The tables that a run writes, and how their rows are made."""
