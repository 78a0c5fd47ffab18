"""Commands that make or read a result: run, submit, explain, ping, report, compare.

Start with `command`, which is `squall run`.
"""
