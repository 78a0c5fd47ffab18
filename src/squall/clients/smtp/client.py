"""The SMTP client of one virtual user: `self.client.smtp`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Unpack

from squall.api.arguments import URL, Email
from squall.api.errors import CallError
from squall.api.protocols.smtp import SendOptions, SMTPResult
from squall.clients.calls.library import Library, LibraryCalls
from squall.clients.calls.probe import PingAnswer
from squall.clients.http.failure_reasons import reason_of
from squall.clients.smtp.connection import MailConnection, MailOutcome, SMTPSessionLost
from squall.clients.smtp.login import open_session
from squall.clients.smtp.message import PreparedEmail, email_of

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient


class SMTPClient:
    """Sends the mails of one user."""

    __slots__ = ("_calls", "_shared")

    def __init__(self, http: HTTPClient) -> None:
        self._shared = http.shared
        self._calls = LibraryCalls(http, "smtp", _LIBRARY)

    async def send(
        self, url: URL, email: Email | None = None, **options: Unpack[SendOptions]
    ) -> SMTPResult:
        """Sends one mail."""
        given: dict[str, Any] = dict(options) if options else {}
        timeout = given.pop("timeout", None)
        if isinstance(email, PreparedEmail) and not given:
            mail = email
        elif email is None:
            mail = email_of(given, self._shared)
        elif given:
            raise CallError("send() takes a mail or its parts, not both")
        else:
            mail = email_of(email, self._shared)
        return await self._call(
            url, f"MAIL FROM:<{mail.sender}>", lambda session: session.send(mail), timeout
        )

    async def probe(self, url: URL) -> PingAnswer:
        """Connects and logs in, without a further command."""
        extensions: list[str] = []

        def ask(session: MailConnection) -> Awaitable[MailOutcome]:
            extensions.extend(sorted(session.extensions))
            return session.noop()

        result = await self._call(url, "NOOP", ask, None)
        return PingAnswer("SMTP", result, [f"extensions: {', '.join(extensions) or 'none'}"])

    async def _call(
        self,
        url: URL,
        operation: str,
        perform: Callable[[MailConnection], Awaitable[MailOutcome]],
        timeout: str | float | None,  # noqa: ASYNC109
    ) -> SMTPResult:
        used: list[MailConnection] = []

        def noted(session: MailConnection) -> Awaitable[MailOutcome]:
            used.append(session)
            return perform(session)

        answer = await self._calls.call(url, operation, noted, timeout=timeout)
        outcome = answer.value
        self._calls.counters.bytes_sent += outcome.bytes_sent
        result = SMTPResult(
            *answer.stamps,
            error=outcome.failure,
            bytes_sent=outcome.bytes_sent,
            bytes_received=answer.received,
            code=outcome.code,
            message=outcome.message,
            refused=outcome.refused,
        )
        if answer.connect_s:
            result.login_s, result.tls_s = used[0].login_s, used[0].tls_s
        return self._calls.done(result)


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, SMTPSessionLost) else reason_of(error)


_LIBRARY: Library[MailConnection] = Library(
    open_session,
    abort=MailConnection.abort,
    close=MailConnection.close,
    is_open=lambda session: not session.lost,
    lost=(SMTPSessionLost,),
    reason=_why,
)
