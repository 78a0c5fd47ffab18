"""What clients that are not HTTP stand on: addresses, connections, counted calls, arrival times.

`address` reads URLs. `connections` keeps the connections of a user, or of all users
(`connections = "vu" | "iteration" | "request" | "shared"`). `library` makes calls through a library
and `arrivals` notes when their answers come. `payload` encodes bodies and `probe` answers
`squall ping`. HTTP does not stand on this.

To add a client:

1. Types: `api/protocols/NAME.py` with `NAMEResponse(ProtocolResponse)` (`protocol: ClassVar`,
   fields with defaults, `text` for `--once`) and `NAMEVerbs`; a line in `api/protocols/clients.py`,
   and the response in `squall/__init__.py`. A new argument type: an alias and a class in
   `api/arguments.py`, and its function in `ARGUMENTS` of `clients/registry.py`.
2. A line in `CLIENTS` of `clients/registry.py`: module, class, extra, schemes. URL preparation,
   `--resolve`, `squall ping`, the check for the extra, statistics and `--once` follow from it.
3. `clients/NAME/client.py`: a class made with the user's `HTTPClient`. On a library:

       class PostgresClient:
           def __init__(self, http):
               self._calls = LibraryCalls(http, "postgres", Library(_open, abort=_abort))

           async def query(self, url, sql, *args, timeout=None):
               answer = await self._calls.call(
                   url, shown(sql), lambda conn: _fetch(conn, sql, args), timeout=timeout
               )
               response = SQLResponse(*answer.stamps, bytes_received=answer.received, ...)
               return self._calls.done(response)

           async def probe(self, url):
               return PingAnswer("PostgreSQL 15.1", await self.query(url, "SELECT 1"))

   `_open(opening)` connects: `opening.host` and `port` (the loop redirects them to the resolved
   address and notes arrivals), `opening.tls` (a context or None), `opening.address.user`,
   `password`, `path`, `query`. `_fetch` turns a refusal of the server into a value, from which
   `error` is made: the iteration goes on. An exception of `Library.lost` becomes a
   `TransportError`: the connection is dropped and the iteration ends. `take`, `on` and `give_back`
   hold a connection over several calls. `Library(multiplexes=True)` has one connection of the
   process for all users, such as a producer.
4. A codec of its own makes a `DialedConnection` with `squall.clients.http.connect.dial` and keeps
   it in `Connections`. It counts `sent`, `replies`, `failed` and `cancelled` itself, asks
   `shared.allows` before each call that begins after `shared.limit`, and ends each with `done` or
   `failed`.
5. Tests, a page and an example; the extra and its package in `pyproject.toml`.
"""
