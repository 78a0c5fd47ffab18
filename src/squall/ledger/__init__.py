"""One durable, ordered history of commands per control group, and the state they make."""
