"""Mails: their parts become one message, and mistakes one line."""

from __future__ import annotations

from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from typing import Any, cast

import pytest

from squall.api.errors import CallError
from squall.clients.http import HTTPShared
from squall.clients.smtp.message import PreparedEmail, email_of


def mail(**parts: Any) -> PreparedEmail:
    given = {"sender": "Ada <ada@shop.test>", "to": "bob@shop.test", **parts}
    return email_of(given, HTTPShared(base_dir=Path(__file__).parent))


def received(prepared: PreparedEmail) -> EmailMessage:
    """What a server makes of the bytes behind DATA (RFC 5321, 4.5.2)."""
    data = prepared.data()
    assert data.endswith(b"\r\n.\r\n")
    lines = [line.removeprefix(b".") for line in data[:-3].split(b"\r\n")]
    return cast(EmailMessage, message_from_bytes(b"\r\n".join(lines), policy=SMTP))


def test_the_envelope_has_bare_addresses_and_every_recipient_once() -> None:
    made = mail(to=["Bob <bob@shop.test>", "eve@shop.test"], cc="bob@shop.test", bcc="joe@x.test")
    assert made.sender == "ada@shop.test"
    assert made.recipients == ("bob@shop.test", "eve@shop.test", "joe@x.test")
    message = received(made)
    assert (message["From"], message["Cc"]) == ("Ada <ada@shop.test>", "bob@shop.test")
    assert message["Bcc"] is None and b"joe" not in made.data()


def test_text_arrives_as_written_also_with_dots_and_umlauts() -> None:
    text = ".\n..two\nGrüße\n" + "long " * 300
    message = received(mail(subject="Schöne Grüße", text=text))
    assert message.get_content().replace("\r\n", "\n").rstrip() == text.rstrip()
    assert message["Subject"] == "Schöne Grüße"
    assert mail(text=text).data().isascii()


def test_attachments_and_html_are_parts() -> None:
    name = Path(__file__).name
    message = received(mail(text="plain", html="<b>rich</b>", attachments=[name, ("a.bin", b"\0")]))
    body = message.get_body(("html",))
    assert body is not None and "<b>rich</b>" in body.get_content()
    files = {part.get_filename(): part.get_content() for part in message.iter_attachments()}
    assert files.keys() == {name, "a.bin"} and files["a.bin"] == b"\0"


def test_every_mail_has_an_id_of_its_own_and_an_own_one_stays() -> None:
    made = mail(text="x")
    ids = {received(made)["Message-ID"] for _ in range(3)}
    assert len(ids) == 3 and len({len(made.data()) for _ in range(3)}) == 1
    own = mail(headers={"Message-ID": "<mine@shop.test>", "X-Test": "yes"})
    assert {received(own)["Message-ID"] for _ in range(2)} == {"<mine@shop.test>"}
    assert received(own)["X-Test"] == "yes"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"to": []}, 'a mail needs "to"'),
        ({"subjekt": "x"}, 'a mail has no "subjekt"'),
        ({"to": "nowhere"}, "is no address"),
        ({"to": "a b@x.test"}, "is no address"),
        ({"to": "jörg@x.test"}, "characters outside ASCII"),
        ({"sender": "a@x.test, b@x.test"}, "one address, not 2"),
        ({"subject": "a\r\nBcc: x@x.test"}, "the mail cannot be written"),
        ({"headers": {"Subject": "x"}}, "has a part of its own"),
        ({"text": 7}, "text of a mail is text, not int"),
        ({"attachments": "nothing.png"}, "cannot read"),
    ],
)
def test_a_mistake_is_one_line(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(CallError) as caught:
        mail(**parts)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_dict_is_refused() -> None:
    with pytest.raises(CallError, match="a mail is a dict such as"):
        email_of("hello", HTTPShared())
