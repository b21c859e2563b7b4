"""The audit of ledger records: lists the ledgers that lack copies, and reports their health."""
