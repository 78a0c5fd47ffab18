"""Thresholds: grammar, binding to names, values, judgement. Start with `judge`."""
