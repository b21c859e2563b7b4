"""End-to-end encryption: what users configure (`api`), and the ciphers (`cipher`)."""
