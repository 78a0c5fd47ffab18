"""Statistics without I/O: histograms, reports, totals, thresholds, verdict.

Start with `reports`, which core processes send, then `totals.run`, which adds them.
`report_sums` adds the reports of several workers; `histogram.summed` adds their buckets.
"""
