"""The policy of a datacenter's primary. Start with `policy`; all of it is pure except
`effect_runner`, which carries out the effects that the policy asks for. `loss_decisions`
loses attempts, `policy` declares workers gone. `core_pool` assigns the
free cores of all workers to jobs; `engine.process.core_pool` starts the processes of one run.
"""
