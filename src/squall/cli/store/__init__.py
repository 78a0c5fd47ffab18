"""Commands of store mode: agents and schedules."""
