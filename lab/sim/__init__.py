"""A deterministic simulation: virtual time, network, disk, crashes, all from one seed."""
