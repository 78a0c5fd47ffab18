"""The replicated state of a datacenter: jobs, workers, attempts. Pure; every change is a command.
Start with `state_machine`; `records` and `tables` hold the state, the `..._rules` change it.
"""
