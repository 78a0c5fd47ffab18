"""The requests of clients and operators that every member of a control group answers alike.

`relay` sends a request on to the member that can answer it, `operator_api` answers about the group
itself. What differs between managers and gates is in `cluster.manager.clients` and
`cluster.gate.clients`.
"""
