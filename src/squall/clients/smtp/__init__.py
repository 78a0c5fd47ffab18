"""SMTP: sends mails.

`message` builds mails before the run, `login` opens connections with aiosmtplib, `connection` sends
on them, and `client` is `self.client.smtp`. Start reading at `client`.
"""

from squall.clients.smtp.client import SMTPClient

__all__ = ["SMTPClient"]
