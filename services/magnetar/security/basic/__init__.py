"""User names and passwords of an htpasswd file."""
