"""Gates and datacenters hand over jobs (R15): both state machines, the steward and both outboxes
are the product's own; logs, network and execution are models, so that thousands of seeds run in
minutes. Start with `scenario`.
"""
