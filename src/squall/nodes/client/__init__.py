"""The client: submits a file, follows the job, takes the result."""
