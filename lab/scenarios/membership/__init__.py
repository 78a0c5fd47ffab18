"""Members that crash, stop, restart and lose each other: the cores of membership on the simulated
network. Start with `scenario`."""
