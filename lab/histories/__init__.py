"""Histories of concurrent clients, and the check that one order explains their answers.

`linearizability` is the search, for any model. `job_api` is the model of the managers' job API,
`job_clients` the clients that use that API and record what they saw. The simulation and the tests
with real processes share all three. Start with `linearizability`.
"""
