"""The store on S3 and compatible services.

Start with `store` (records); `streams` keeps streams, `objects` has the conditional requests that
both stand on, `polled_waits` polls for what S3 cannot announce.
"""
