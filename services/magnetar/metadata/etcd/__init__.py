"""The metadata store on etcd (3.4 or newer), over grpc.aio. `opening.open_store` opens it.

`settings` says where etcd is; `endpoints` holds the connections and moves on to another member;
`client` calls, with deadlines, retries and authentication; `errors` tells what a failure means for
what was asked; `watching` and `leases` are what their names say; `store` puts them together.
"""
