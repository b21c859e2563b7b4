"""The HTTP layer of the admin REST: server, routes, bodies, answers and the OpenAPI document."""
