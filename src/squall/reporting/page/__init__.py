"""Renders the HTML report: sections, style and script. Start with `render`."""
