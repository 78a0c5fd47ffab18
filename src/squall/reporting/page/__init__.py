"""The parts of the HTML report: its sections, its style and its script."""
