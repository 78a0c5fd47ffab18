"""One member of a datacenter's control group: it answers workers, clients and operators, and
the primary among the members places jobs and watches them. Start with `node`, which composes
the rest; `director` holds the policy, `telemetry` what is shown of running jobs.
"""
