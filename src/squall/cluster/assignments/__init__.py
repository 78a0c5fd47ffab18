"""The replicated state of the gates: jobs, their parts, and which datacenter has which part (R15).
Pure; every change is a command. Start with `state_machine`; `records` and `tables` hold the state,
the `..._rules` change it. Gates, the manager's side and the laboratory import it.
"""
