"""The client of a cluster: finds it, packs a file, submits it, follows the job, fetches the result.

`squall.Client` and the commands stand on this folder. Start with `cluster_client`;
`submission_journal` remembers idempotency keys.
"""
