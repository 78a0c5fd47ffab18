"""What gates and datacenters say to each other: orders and reports about parts of jobs
(`gate_messages`), the state of datacenters (`federation_messages`), the keys of both
(`handover_keys`), the split of a submission (`job_split`), live numbers (`job_reports`).
"""
