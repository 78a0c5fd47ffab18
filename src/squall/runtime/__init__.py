"""The only way to clock, randomness, network, disk and processes; real here, simulated
in `squall.sim` behind the same interfaces."""
