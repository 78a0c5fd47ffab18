"""The clients of one virtual user for files over SSH: `self.client.sftp` and `self.client.scp`.

Each has connections of its own. A key or a file of known hosts belongs to the connection, so a call
with others opens another one: the address stands for them (`_address`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import asyncssh

from squall.api.arguments import URL, File
from squall.api.protocols.transfers import SCPResult, SFTPResult, SSHOptions
from squall.clients.calls.arrivals import Opening
from squall.clients.calls.library import Library, LibraryCalls
from squall.clients.calls.probe import Probe
from squall.clients.shared.sent_files import content_of, remote_path
from squall.clients.ssh import scp, sftp
from squall.clients.ssh.login import Identity, Session, lost_reason, open_session
from squall.clients.ssh.sftp import Outcome

if TYPE_CHECKING:
    from squall.clients.calls.address import PreparedAddress
    from squall.clients.http.client import HTTPClient
    from squall.clients.http.shared import HTTPShared

R = TypeVar("R", SFTPResult, SCPResult)
_NOBODY = Identity("", "")
_PEM = "-----BEGIN"
