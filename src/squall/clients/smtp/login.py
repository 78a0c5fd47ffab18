"""Opens SMTP sessions: greeting, EHLO, STARTTLS and AUTH, by aiosmtplib."""

from __future__ import annotations

import asyncio
import re
import socket
from time import perf_counter
from typing import cast

from aiosmtplib import (
    SMTP,
    SMTPConnectError,
    SMTPException,
    SMTPResponseException,
    SMTPServerDisconnected,
)

from squall.api.errors import CallError, TransportError
from squall.clients.calls.arrivals import LibraryOpening
from squall.clients.http.shared import NO_ALPN
from squall.clients.smtp.connection import MailConnection, SMTPSessionLost, short_answer

_STARTTLS = {"": None, "required": True, "never": False}
# RFC 5321, 4.1.1.1: the client's name, or its address in brackets.
_HOST_NAME = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_NO_NAME = "[127.0.0.1]"


async def open_session(opening: LibraryOpening) -> MailConnection:
    """Connects and logs in with the user of the address, if it has one."""
    wanted = opening.address.query.get("starttls", "")
    if wanted not in _STARTTLS:
        raise CallError(f'starttls={wanted} in the address: write "required" or "never"')
    name = socket.gethostname()
    smtp = SMTP(
        hostname=opening.host,
        port=opening.port,
        local_hostname=name if _HOST_NAME.fullmatch(name) else _NO_NAME,
        use_tls=opening.tls is not None,
        start_tls=False,
        tls_context=opening.tls,
        timeout=None,
    )
    try:
        return await _session(smtp, opening, _STARTTLS[wanted])
    except SMTPConnectError as error:
        smtp.close()
        if isinstance(error, SMTPResponseException):
            raise _refused("greeting", error) from error
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, SMTPException):
            raise cause from None
        raise SMTPSessionLost("connection closed before a response") from error
    except SMTPServerDisconnected as error:
        smtp.close()
        raise SMTPSessionLost("connection closed before a response") from error
    except SMTPResponseException as error:
        smtp.close()
        raise _refused("login" if opening.address.user else "EHLO", error) from error
    except BaseException:
        smtp.close()
        raise


async def _session(smtp: SMTP, opening: LibraryOpening, starttls: bool | None) -> MailConnection:
    began = perf_counter()
    await smtp.connect()
    connected = perf_counter()
    await smtp.ehlo()
    tls_s = 0.0
    if opening.tls is None and starttls is not False:
        if smtp.supports_extension("starttls"):
            encrypting = perf_counter()
            await smtp.starttls(tls_context=opening.shared.tls_context(NO_ALPN))
            tls_s = perf_counter() - encrypting
            await smtp.ehlo()
        elif starttls:
            raise TransportError("the server does not offer STARTTLS")
    address = opening.address
    if address.user:
        if not smtp.supports_extension("auth"):
            raise TransportError("the server does not offer AUTH")
        if not smtp.supported_auth_methods:
            raise TransportError("the server offers no kind of AUTH that is known")
        await smtp.login(address.user, address.password)
    transport = smtp.transport
    if transport is None or transport.is_closing():
        raise SMTPSessionLost("connection closed before a response")
    session = MailConnection(
        cast(asyncio.Transport, transport), opening.arrivals, dict(smtp.esmtp_extensions)
    )
    session.tls_s = tls_s or (connected - began if opening.tls else 0.0)
    session.login_s = perf_counter() - connected - tls_s
    return session


def _refused(what: str, error: SMTPResponseException) -> TransportError:
    return TransportError(f"{what} refused: {short_answer(f'{error.code} {error.message}')}")
