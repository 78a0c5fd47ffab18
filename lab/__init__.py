"""The laboratory: simulation, scenarios and mutants. Outside of the wheel; nothing of
`squall` imports it. Start with `lab.command`, then `lab.scenarios.registry`.
"""
