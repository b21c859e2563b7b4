"""The check of copies: proofs by their bookies, a verdict per ledger, and rewritten copies."""
