"""Collects the parts of a job's result from the committed state and the stored records.
Start with `committed_parts`; `squall.cluster.results` makes the result of them.
"""
