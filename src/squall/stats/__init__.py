"""Histograms, windows, merging, thresholds, verdict: numbers, without any I/O."""
