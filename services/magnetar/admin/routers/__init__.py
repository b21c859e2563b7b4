"""One router for each resource: parse, call the broker, answer."""
