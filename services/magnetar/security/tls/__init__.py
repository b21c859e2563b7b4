"""TLS for every port and client: contexts that follow their files, and the encrypted transport."""
