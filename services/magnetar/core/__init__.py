"""What every layer shares: ids, names, clock, errors and hashes. Imports nothing of ours."""
