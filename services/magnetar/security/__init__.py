"""Who a peer is, and how it proves that: secrets, identities, authentication, TLS.

What an identity may do is decided above, by `magnetar.broker.security`.
"""
