"""Runs membership on a node: the socket, the timer, the log lines, the metrics.

`driver.MembershipDriver` drives the pure core of `squall.cluster.membership`; managers, gates and
workers have one each. Start with `driver`. What it says is advice: nothing here may end or lose
work (R5).
"""
