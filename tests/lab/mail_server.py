"""A mail server on the package `aiosmtpd`, in a thread of its own. It keeps what it took.

Recipients decide what it answers: `nobody@` is refused with 550, `busy@` with 451, and a mail to
`late@` gets no answer at all. A mail to `reject@` is refused after its content.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

USER, PASSWORD = "ada", "swordfish"
_REFUSALS = {
    "nobody": "550 5.1.1 <{}>: no such user",
    "busy": "451 4.3.0 <{}>: try again",
}


class MailServer:
    """What the server saw, as a handler of aiosmtpd."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.logins = 0
        self.encrypted = 0
        self.mails: list[Envelope] = []
        self.commands: list[str] = []
        self.offers_pipelining = False

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    @property
    def login_url(self) -> str:
        return f"smtp://{USER}:{PASSWORD}@127.0.0.1:{self.port}"

    async def handle_EHLO(
        self, server: SMTP, session: Session, envelope: Envelope, name: str, answers: list[str]
    ) -> list[str]:
        session.host_name = name
        offered = ["250-PIPELINING"] if self.offers_pipelining else []
        return [answers[0], *offered, *answers[1:]]

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: Any
    ) -> str:
        refusal = _REFUSALS.get(address.partition("@")[0])
        if refusal is not None:
            return refusal.format(address)
        if address.startswith("late@"):
            await asyncio.sleep(3600)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if any(each.startswith("reject@") for each in envelope.rcpt_tos):
            return "554 5.7.1 this is spam"
        self.mails.append(envelope)
        # `session.ssl` is of STARTTLS only.
        if session.ssl is not None or server.transport.get_extra_info("sslcontext") is not None:
            self.encrypted += 1
        return f"250 2.0.0 taken as {len(self.mails)}"

    def authenticate(self, server: Any, session: Any, envelope: Any, how: str, data: Any) -> Any:
        if (data.login, data.password) != (USER.encode(), PASSWORD.encode()):
            return AuthResult(success=False, handled=False)
        self.logins += 1
        return AuthResult(success=True)


@contextmanager
def running_mail_server(
    *,
    port: int = 0,
    starttls: ssl.SSLContext | None = None,
    tls: ssl.SSLContext | None = None,
    login: bool = False,
    pipelining: bool = False,
    server: MailServer | None = None,
) -> Generator[MailServer]:
    """The server on a port of its own. `server` continues the counts of an earlier one."""
    server = server or MailServer()
    server.offers_pipelining = pipelining
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()
    open_transports: set[asyncio.BaseTransport] = set()

    class Connection(SMTP):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            if transport not in open_transports:
                # STARTTLS makes the connection once more.
                open_transports.add(transport)
                server.connections += self.session is None
            super().connection_made(transport)

    def connection() -> SMTP:
        # aiosmtpd warns of logins in clear.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return made_connection()

    def made_connection() -> SMTP:
        return Connection(
            server,
            hostname="mail.test",
            tls_context=starttls,
            auth_required=login,
            auth_require_tls=starttls is not None,
            authenticator=server.authenticate,
            loop=loop,
        )

    async def main() -> None:
        made = await loop.create_server(connection, "127.0.0.1", port, ssl=tls)
        server.port = made.sockets[0].getsockname()[1]
        ready.set()
        await stopped.wait()
        made.close()
        for transport in open_transports:
            transport.abort()  # type: ignore[attr-defined]
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5) if tasks else None

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(10)
        loop.close()
