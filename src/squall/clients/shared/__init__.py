"""What the clients of all protocols stand on: TLS contexts, TLS transports, allocator settings.

Nothing here knows a protocol. A client takes its context from `tls_context`, and opens a connection
with it through `tls_transport`.
"""
