"""What the primary of every control group does with the decisions of its policy: it runs the
effects (`effect_tasks`) and makes the end of a job durable (`job_end`). Directors and stewards
decide; their effect runners import this.
"""
