"""The metadata store: small, versioned records; one interface, several implementations."""
