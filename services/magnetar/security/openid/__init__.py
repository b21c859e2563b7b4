"""JSON web tokens that OpenID Connect issuers sign, Kubernetes among them."""
