"""The Lua scripts that run inside Redis, and the layout of their keys.

Each operation of the store is one script, because Redis runs a script without interruption:
the conditions that it checks still hold when it writes. The texts are the `.lua` files beside
this module; `prelude.lua` stands before each of them. A script is addressed by the SHA-1 of
its text.

All keys begin with the prefix in braces, Redis Cluster's hash tag: a Cluster then keeps them
in one slot, and a script may touch any of them.

    {p}:kind:id          record: hash v value, n version, e epoch, m modified, x expires
                         stream: hash @b birth, @n last number, <n> time|id|value, c<n> claim,
                                 i<id> number of an id, x<n> claim that removed an item
    {p}:kind:id#r        stream: items without a holder, by number
    {p}:kind:id#h        stream: held items, by the end of the claim
    {p}:kind:id#d        stream: recently removed items, by the time of removal
    {p}:kind:id#q:owner  stream: the last take of an owner, while it may be repeated
    {p}#index:kind       keys of a kind, by the time of the last write
    {p}#streams          streams, by the time they expire
    {p}#kinds            kinds that have an index
    {p}#bell:name        Redis stream that exists while a process waits for the name; each write
                         adds an entry: w, or for a carried item b birth, n number,
                         v time|id|value, s key|version|key|version of the records beside it

Each sorted set of a stream holds the member "@" with an infinite score, so that the set never
becomes empty: Redis would delete it, and its expiry with it. Every key expires.
"""

from __future__ import annotations

from importlib import resources


def _load(name: str) -> str:
    """The text of one `.lua` file. Comment lines are left out: rewording one must not change the
    SHA of a script, and Redis need not store them."""
    text = (resources.files("squall.coordination.stores.redis") / f"{name}.lua").read_text(
        encoding="utf-8"
    )
    code = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "\n" + "\n".join(code) + "\n"


_PRELUDE = _load("prelude")
WRITE = _PRELUDE + _load("write")
GET = _PRELUDE + _load("get")
LIST = _PRELUDE + _load("list")
SWEEP = _PRELUDE + _load("sweep")
COUNT = _PRELUDE + _load("count")
READ = _PRELUDE + _load("read")
TAKE = _PRELUDE + _load("take")
DEPTH = _PRELUDE + _load("depth")
ARM = _PRELUDE + _load("arm")
