"""Cold data: closed ledgers as files in object stores, the records of them, and reading them."""
