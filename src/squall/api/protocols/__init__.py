"""The author's API of protocols that are not HTTP, one module per protocol.

`response` has what their responses have in common, and `clients` is `self.client`. A module has the
response of its protocol and a `...Verbs` protocol, which the client in `squall.clients` implements.
"""
