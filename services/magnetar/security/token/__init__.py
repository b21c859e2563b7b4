"""JSON web tokens (RFC 7519) that this process verifies with its own keys."""
