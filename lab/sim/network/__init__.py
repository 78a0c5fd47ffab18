"""The network of a simulated world: links, hosts, byte streams. Start with `network`."""
