"""The only way to clock, randomness, network, disk and processes.

Node code gets a `Runtime` (`interfaces`): the one in `real`, or that of the simulation in
`lab.sim`. Also here: tasks, the retry policy, logging and metrics. Every package but `api` may
import it; only programs import `real`.
"""
