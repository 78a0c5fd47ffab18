"""Delivers results; one module per kind of output. Start with `delivery`.

`registry` lists the kinds, `targets` reads their addresses and flags. `files` and the modules
beside it write files; `rows` derives the rows that `relational`, `documents` and `cloud` store;
`live` sends each second while the run goes on.
"""
