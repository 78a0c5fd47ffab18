"""Builds mails: the parts that the author names become one MIME message, once.

A message is kept as it is sent: lines end with CRLF and lines that begin with a dot have a second
one (RFC 5321, 4.5.2). Each mail that is sent gets a Message-ID of its own, because servers drop a
message that they have seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.errors import MessageError
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, getaddresses
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from squall.api.arguments import FileSet, Prepared
from squall.api.errors import CallError
from squall.api.protocols.smtp import EmailParts
from squall.api.quantities import quoted
from squall.clients.http.body import PreparedFile

_KNOWN = EmailParts.__optional_keys__ | EmailParts.__required_keys__
_NEEDED = ("sender", "to")
# Replaced in every mail; as long as any that `_ids` makes.
_PLACE = b"squall-message-id-goes-here"
_DOTS = re.compile(rb"(?m)^\.")
_LINE_END = re.compile(rb"\r\n|\r|\n")
# RFC 5321, 4.1.2: no address in an envelope has these.
_NOT_IN_ADDRESS = re.compile(r"[\x00-\x20\x7f<>]")

if TYPE_CHECKING:
    from squall.clients.http.shared import HTTPShared

ReadFile = Callable[[Any], PreparedFile]


class PreparedEmail(Prepared):
    """A mail: its envelope, and its bytes around the Message-ID."""

    __slots__ = ("after", "before", "recipients", "sender", "size")

    def __init__(
        self, value: Any, sender: str, recipients: tuple[str, ...], message: bytes
    ) -> None:
        super().__init__(value)
        self.sender = sender
        self.recipients = recipients
        self.before, self.after = _on_the_wire(message)
        self.size = len(self.before) + len(self.after) + len(_PLACE)

    def data(self) -> bytes:
        """The bytes that follow DATA, with their end."""
        if not self.after:
            return self.before
        return b"%b%b%b" % (self.before, next(_ids), self.after)


def email_of(value: Any, shared: HTTPShared) -> PreparedEmail:
    """`value` is a dict of `EmailParts`; `shared` knows where its files are."""
    if isinstance(value, PreparedEmail):
        return value
    if not isinstance(value, Mapping):
        raise CallError(
            f"a mail is a dict such as {{'sender': ..., 'to': ..., 'subject': ..., 'text': ...}}, "
            f"not {type(value).__name__}"
        )
    parts = dict(cast("Mapping[str, Any]", value))
    unknown = sorted(parts.keys() - _KNOWN)
    if unknown:
        raise CallError(f"a mail has no {quoted(unknown[0])}; it has {', '.join(sorted(_KNOWN))}")
    missing = [name for name in _NEEDED if not parts.get(name)]
    if missing:
        raise CallError(f"a mail needs {quoted(missing[0])}")
    message = _composed(parts, shared.file)
    recipients = [
        address for name in ("to", "cc", "bcc") for address in _addresses(parts.get(name), name)
    ]
    (sender,) = _addresses(parts["sender"], "sender", most=1)
    return PreparedEmail(value, sender, tuple(dict.fromkeys(recipients)), bytes(message))


def _composed(parts: Mapping[str, Any], read_file: ReadFile) -> EmailMessage:
    message = EmailMessage(SMTP)
    try:
        message["From"] = _text(parts["sender"], "sender")
        message["To"] = _shown(parts["to"], "to")
        if parts.get("cc"):
            message["Cc"] = _shown(parts["cc"], "cc")
        if parts.get("reply_to"):
            message["Reply-To"] = _text(parts["reply_to"], "reply_to")
        message["Subject"] = _text(parts.get("subject", ""), "subject")
        for name, text in cast("Mapping[str, Any]", parts.get("headers") or {}).items():
            if name in message:
                raise CallError(f"header {name!r} of a mail has a part of its own")
            message[name] = _text(text, f"header {name}")
        _add_own_headers(message)
        message.set_content(_text(parts.get("text", ""), "text"))
        if parts.get("html"):
            message.add_alternative(_text(parts["html"], "html"), subtype="html")
        for file in _files(parts.get("attachments"), read_file):
            kind, _, subtype = file.content_type.decode().partition(";")[0].partition("/")
            if kind in ("message", "multipart") or not subtype:
                # Their content would be parsed again; it is sent unchanged.
                kind, subtype = "application", "octet-stream"
            message.add_attachment(file.content, maintype=kind, subtype=subtype, filename=file.name)
    except (ValueError, MessageError, LookupError) as error:
        raise CallError(f"the mail cannot be written: {error}") from error
    return message


def _add_own_headers(message: EmailMessage) -> None:
    if "Date" not in message:
        message["Date"] = formatdate(localtime=False)
    if "Message-ID" not in message:
        message["Message-ID"] = f"<{_PLACE.decode()}@squall>"


def _on_the_wire(message: bytes) -> tuple[bytes, bytes]:
    """The message before and after its Message-ID; the second is empty if the author chose one."""
    data = _LINE_END.sub(b"\r\n", message)
    if not data.endswith(b"\r\n"):
        data += b"\r\n"
    data = _DOTS.sub(b"..", data) + b".\r\n"
    before, _, after = data.partition(_PLACE)
    return before, after


def _new_ids() -> Iterator[bytes]:
    own = os.urandom(6).hex()
    for number in count(1):
        yield f"{own}.{number:014x}".encode()


_ids = _new_ids()


def _addresses(given: Any, name: str, most: int = 0) -> list[str]:
    """Bare addresses of "Ada <ada@shop.test>", one or a list of them."""
    texts = [_text(each, name) for each in _listed(given)]
    found = [address for _, address in getaddresses(texts)]
    for address in found:
        local, at, _ = address.rpartition("@")
        if not at or not local or _NOT_IN_ADDRESS.search(address):
            raise CallError(f"{name} of a mail: {quoted(', '.join(texts))} is no address")
        if not address.isascii():
            raise CallError(f"{name} of a mail: {quoted(address)} has characters outside ASCII")
    if most and len(found) > most:
        raise CallError(f"{name} of a mail is one address, not {len(found)}")
    return found


def _shown(given: Any, name: str) -> str:
    return ", ".join(_text(each, name) for each in _listed(given))


def _files(given: Any, read_file: ReadFile) -> Iterator[PreparedFile]:
    for each in _listed(given):
        if isinstance(each, FileSet):
            yield from cast("Sequence[PreparedFile]", each)
        else:
            yield read_file(each)


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(cast("list[Any]", given)) if isinstance(given, list) else [given]


def _text(given: Any, name: str) -> str:
    if not isinstance(given, str):
        raise CallError(f"{name} of a mail is text, not {type(given).__name__}")
    return given
