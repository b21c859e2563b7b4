"""The analysis of gathered and scanned facts. Pure."""
