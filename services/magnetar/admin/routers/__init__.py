"""The routes of the admin REST, one module per resource: parse, call the broker, answer."""
