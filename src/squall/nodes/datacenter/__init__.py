"""The state of a datacenter: jobs, workers, attempts. Pure; every change is a command."""
