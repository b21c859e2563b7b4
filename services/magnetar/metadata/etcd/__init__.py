"""The metadata store on etcd (3.4 or newer), over grpc.aio. `metadata.store_url` opens it.

`settings` has the addresses; `endpoints` holds the connections, and switches to another member if
one fails; `client` calls, with deadlines, retries and authentication; `errors` maps a failure to
its meaning for the request; `watch_stream` follows keys, `leases` renews leases; `store` composes
them.
"""
