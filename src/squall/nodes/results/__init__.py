"""From attempts' records to the one result of a job."""
