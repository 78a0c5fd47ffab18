"""Sends one mail after the other on a connection that is logged in.

aiosmtplib connects, negotiates TLS and logs in; then this protocol takes over the transport. It
writes the commands of a mail at once where the server offers PIPELINING (RFC 2920), and one by one
elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, cast

from squall.clients.calls.arrivals import Arrivals
from squall.clients.smtp.message import PreparedEmail

COMPLETED = 250
MAIL, RCPT, DATA, NOOP = "MAIL FROM", "RCPT TO", "DATA", "NOOP"
_CONTENT, _EMPTY, _RESET = "content", "empty", "RSET"
_GO_ON, _CLOSING = 354, 421
# RFC 5321, 4.5.3.1.5: 512 bytes a line. Servers send more, but none sends this much.
_MOST_ANSWER_BYTES = 64 * 1024


class SMTPSessionLost(Exception):
    """The session ended before the mail was sent; the text says why."""


class MailOutcome(NamedTuple):
    """The server's answer to a mail. `command` is the one that it refused, or the last one."""

    command: str
    code: int
    message: str
    refused: dict[str, str]
    bytes_sent: int

    @property
    def failure(self) -> str:
        """Why the mail counts as failed, without the words of the server; empty if it does not."""
        if self.code != COMPLETED:
            return f"{self.command} refused: {short_answer(f'{self.code} {self.message}')}"
        if self.refused:
            return f"{RCPT} refused: {short_answer(next(iter(self.refused.values())))}"
        return ""


class MailConnection(asyncio.Protocol):
    """Sends mails, one at a time; `lost` says why there will be no further one."""

    def __init__(
        self, transport: asyncio.Transport, arrivals: Arrivals, extensions: Mapping[str, str]
    ) -> None:
        self.transport = transport
        # What the server offers (EHLO), by names in small letters.
        self.extensions = extensions
        self.login_s = self.tls_s = 0.0
        self.lost = ""
        self._arrivals = arrivals
        self._pipelines = "pipelining" in extensions
        self._future: asyncio.Future[MailOutcome] | None = None
        self._buffer = b""
        self._lines: list[str] = []
        # Commands to send, as (kind, recipient, bytes), and those whose answers are awaited.
        self._commands: deque[tuple[str, str, bytes]] = deque()
        self._awaited: deque[tuple[str, str]] = deque()
        # Whether a refused mail left a transaction open on the server.
        self._needs_reset = False
        self._mail: PreparedEmail | None = None
        self._accepted = 0
        self._refused: dict[str, str] = {}
        self._decided: tuple[str, int, str] | None = None
        self._bytes_sent = 0
        transport.set_protocol(self)

    def send(self, mail: PreparedEmail) -> asyncio.Future[MailOutcome]:
        """Sends a mail. The future has the outcome, or raises `SMTPSessionLost`."""
        self._mail = mail
        commands = self._commands
        if self._needs_reset:
            commands.append((_RESET, "", b"RSET\r\n"))
        size = b" SIZE=%d" % mail.size if "size" in self.extensions else b""
        commands.append((MAIL, "", b"MAIL FROM:<%b>%b\r\n" % (mail.sender.encode(), size)))
        for address in mail.recipients:
            commands.append((RCPT, address, b"RCPT TO:<%b>\r\n" % address.encode()))
        commands.append((DATA, "", b"DATA\r\n"))
        return self._begun()

    def noop(self) -> asyncio.Future[MailOutcome]:
        """Asks whether the session is alive."""
        self._commands.append((NOOP, "", b"NOOP\r\n"))
        return self._begun()

    def _begun(self) -> asyncio.Future[MailOutcome]:
        self._future = future = asyncio.get_running_loop().create_future()
        self._accepted = self._bytes_sent = 0
        self._refused, self._decided = {}, None
        if self.lost:
            future.set_exception(SMTPSessionLost(self.lost))
        else:
            self._send_commands()
        return future

    def data_received(self, data: bytes) -> None:
        self._arrivals.came(len(data))
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            text = line.rstrip(b"\r").decode("utf-8", "replace")
            if not text[:3].isdigit() or text[3:4] not in ("", " ", "-"):
                self._lose("not an SMTP answer")
                return
            self._lines.append(text[4:])
            if text[3:4] != "-":
                message, self._lines = "\n".join(self._lines), []
                self._answered(int(text[:3]), message)
        if len(self._buffer) + sum(map(len, self._lines)) > _MOST_ANSWER_BYTES:
            self._lose(f"answer larger than {_MOST_ANSWER_BYTES >> 10} KiB")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("connection reset" if exc else "connection closed before a response")

    async def close(self) -> None:
        """Says goodbye and waits until the server closes the connection."""
        if self.lost:
            return
        self._future = leaving = asyncio.get_running_loop().create_future()
        self.lost = "client closed"
        self.transport.write(b"QUIT\r\n")
        with suppress(SMTPSessionLost):
            await leaving

    def abort(self) -> None:
        self._lose("client closed")

    def _send_commands(self) -> None:
        count = len(self._commands) if self._pipelines else 1
        sent = [self._commands.popleft() for _ in range(count)]
        self._awaited.extend((kind, address) for kind, address, _ in sent)
        self._write(b"".join([command for _, _, command in sent]))

    def _write(self, data: bytes) -> None:
        self._bytes_sent += len(data)
        self.transport.write(data)

    def _answered(self, code: int, message: str) -> None:
        if not self._awaited or code == _CLOSING:
            # 421 may come at any moment, and ends the session (RFC 5321, 3.8).
            self._lose(f"the server closes the session: {code}")
            return
        kind, address = self._awaited.popleft()
        is_good = 200 <= code < 300
        if kind == MAIL and not is_good:
            self._refuse(MAIL, code, message)
        elif kind == RCPT:
            self._take_recipient(address, code, message, is_good=is_good)
        elif kind == DATA:
            self._take_data(code, message)
        elif kind == _CONTENT:
            self._needs_reset = False
            self._decided = (DATA, code, message)
        elif kind == NOOP:
            self._decided = (NOOP, code, message)
        if self._awaited:
            return
        if self._commands:
            self._send_commands()
        else:
            self._finish()

    def _take_recipient(self, address: str, code: int, message: str, *, is_good: bool) -> None:
        if is_good:
            self._accepted += 1
            self._needs_reset = True
            return
        self._refused[address] = f"{code} {message}"
        mail = cast(PreparedEmail, self._mail)
        if len(self._refused) == len(mail.recipients):
            self._needs_reset = True
            self._refuse(RCPT, code, message)

    def _take_data(self, code: int, message: str) -> None:
        if code != _GO_ON:
            self._refuse(DATA, code, message)
        elif self._decided is None:
            self._write(cast(PreparedEmail, self._mail).data())
            self._awaited.append((_CONTENT, ""))
        else:
            # A pipelining server that took DATA though it refused all before it.
            self._write(b".\r\n")
            self._awaited.append((_EMPTY, ""))

    def _refuse(self, command: str, code: int, message: str) -> None:
        """Notes that the server refused the mail. Later refusals only follow from the first one."""
        self._commands.clear()
        if self._decided is None:
            self._decided = (command, code, message)

    def _finish(self) -> None:
        future, self._future = self._future, None
        if future is None or future.done() or self._decided is None:
            return
        future.set_result(MailOutcome(*self._decided, self._refused, self._bytes_sent))

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._commands.clear()
        self._awaited.clear()
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_exception(SMTPSessionLost(self.lost))
        self.transport.abort()


def short_answer(answer: str) -> str:
    """The codes of an answer, "550 5.1.1" of "550 5.1.1 no such user": the text differs by mail."""
    code, _, rest = answer.partition(" ")
    enhanced = rest.split(maxsplit=1)[0] if rest.strip() else ""
    parts = enhanced.split(".")
    if len(parts) == 3 and all(part.isdecimal() for part in parts):
        return f"{code} {enhanced}"
    return code
