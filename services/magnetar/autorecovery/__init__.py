"""Autorecovery: keeps every ledger at its full number of proven copies, and names lost entries.

The modules of this package serve all parts. `check` proves copies and rewrites wrong ones; `repair`
replicates under-replicated ledgers and uses `check`; `audit` lists these ledgers and uses both;
`drain` empties bookies and uses `check`. No package imports one that uses it.
"""
