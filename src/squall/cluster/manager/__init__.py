"""One member of a datacenter's control group: it answers workers, clients and operators, and
the primary among the members places jobs and watches them. Start with `node`, which composes
the rest; `director` holds the policy, `sessions` answers workers, `gates` takes parts over from
gates. The numbers of running jobs are in `squall.cluster.group.telemetry`.
"""
