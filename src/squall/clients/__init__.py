"""Protocol clients that make the load, one folder per protocol.

`registry` finds the client of a protocol or scheme. `http` stands alone; the others stand on
`calls`, whose page says how to add one, or on `http`. `shared` knows no protocol.
"""
