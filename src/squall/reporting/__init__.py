"""Turns the outcome of a run into text and files.

`document` builds the results document, `text` the output for a terminal, `page` the HTML report;
`compare` compares runs, and `outputs` delivers results. Start with `document.build`.
"""
