"""The author's API of protocols that are not HTTP, one module per protocol.

A module has the response of its protocol and a `...Verbs` protocol, which the client in
`squall.clients` implements. `proto` has the `.proto` files of gRPC.
"""
