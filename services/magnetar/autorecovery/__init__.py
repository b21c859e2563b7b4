"""Keeps every ledger at its full number of proven copies, and says where it cannot."""
