"""Executes workflows: plan, virtual users, load profiles, recorder, core processes."""
