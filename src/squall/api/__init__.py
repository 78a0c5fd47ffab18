"""Everything that authors import through `squall`, in the lowest layer.

Imports nothing else of Squall. Start with `workflow` and `hooks`; `errors` has the
exit codes.
"""
