"""Authentication of peers: secrets, identities, providers, TLS.

Authorization is in `magnetar.broker.security`, above.
"""
