"""The repair of under-replicated ledgers: copy, prove, then change the record."""
