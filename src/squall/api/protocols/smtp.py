"""The author's API of mails: the parts of a message, the result, and `self.client.smtp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Required, TypedDict, Unpack

from squall.api.errors import StatusError
from squall.api.protocols.response import ProtocolResponse

if TYPE_CHECKING:
    from squall.api.arguments import URL, Email, File


class SMTPResult(ProtocolResponse, eq=False, gc=False):
    """How the server answered one mail. `connect_s` has connecting, TLS and login."""

    protocol: ClassVar[str] = "smtp"

    code: int = 0
    """The last answer: 250 if the server took the mail."""
    message: str = ""
    """What the server says with it."""
    refused: Mapping[str, str] = {}
    """Recipients that the server refused, each with its answer."""
    login_s: float = 0.0
    """Greeting, EHLO and AUTH: part of `connect_s`; 0 on a reused connection."""
    tls_s: float = 0.0
    """TLS handshake, also one that STARTTLS begins: part of `connect_s`."""

    @property
    def text(self) -> str:
        """What the server answered."""
        return f"{self.code} {self.message}".strip()

    def raise_for_status(self) -> None:
        """Raises a `StatusError`, which stops the iteration, unless the server took the mail for
        all recipients."""
        if self.error:
            raise StatusError(self.error, self)


class EmailParts(TypedDict, total=False):
    """The parts of a mail. Addresses are like `"ada@shop.test"` or `"Ada <ada@shop.test>"`."""

    sender: Required[str]
    """Who sends it: in the envelope and in `From`."""
    to: Required[str | list[str]]
    """One recipient, or a list of them."""
    cc: str | list[str]
    """Further recipients, shown in the message."""
    bcc: str | list[str]
    """Further recipients, not shown."""
    reply_to: str
    """Where answers go."""
    subject: str
    """The subject."""
    text: str
    """The content as plain text."""
    html: str
    """The content as HTML, beside the plain text."""
    attachments: File | Sequence[File]
    """Files to attach: a path, `(name, content)`, or a list of these."""
    headers: Mapping[str, str]
    """Further headers."""


class SendOptions(TypedDict, total=False):
    """The keywords of `send`: the parts of a mail that is not prepared, and its limit."""

    sender: str
    """As in an `Email`; so are the parts that follow."""
    to: str | list[str]
    cc: str | list[str]
    bcc: str | list[str]
    reply_to: str
    subject: str
    text: str
    html: str
    attachments: File | Sequence[File]
    headers: Mapping[str, str]
    timeout: str | float | None
    """Limit for this call, such as `"5s"`, instead of the limit of the step or workflow."""


class SMTPVerbs(Protocol):
    """`self.client.smtp`: sends mails to a server.

    Addresses are `smtp://user:password@host:port`, or `smtps://` where the connection begins with
    TLS. `smtp://` uses STARTTLS if the server offers it; `?starttls=required` at the end of the
    address demands it, `?starttls=never` does without. A connection stays logged in. A call returns
    its result whatever the server answers to the mail; it raises `TransportError` if there is no
    answer or no login.
    """

    async def send(
        self, url: URL, email: Email | None = None, **options: Unpack[SendOptions]
    ) -> SMTPResult:
        """Sends one mail: an `Email` argument, or the parts as keywords (`sender=`, `to=`,
        `subject=`, `text=`, `html=`, `attachments=` ...)."""
        ...
