"""Gates, datacenters, workers and clients: the real nodes over a model of the engine. Start with
`scenario`; `checks` watches from outside.
"""
