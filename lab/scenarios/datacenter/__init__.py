"""A whole datacenter, with the real nodes on a model of the engine. Start with `scenario`."""
