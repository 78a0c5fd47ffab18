"""Commands for a first try on one machine: new, target, demo, dev."""
