"""Builds the one result of a job from the records of its attempts. Pure; `assemble` is the entry,
`job_result` the format.
"""
