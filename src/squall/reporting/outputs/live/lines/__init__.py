"""Backends that take lines of text: InfluxDB and Telegraf, StatsD and its dialects, Graphite."""
