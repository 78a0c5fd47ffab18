"""The author's API of file transfers: `self.client.ftp`, `.sftp` and `.scp`, and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, TypedDict, Unpack

from squall.api.errors import StatusError
from squall.api.protocols.response import ProtocolResponse

if TYPE_CHECKING:
    from squall.api.arguments import URL, File


class TransferResult(ProtocolResponse, eq=False, gc=False):
    """How a server answered one call. `connect_s` has connecting, TLS or keys, and login."""

    path: str = ""
    """The path on the server."""
    code: int = 0
    """What the server answered: FTP 226 or 250, SFTP and SCP 0 if all went well."""
    message: str = ""
    """What the server says with it."""
    content: bytes = b""
    """What `get` received; what `list` received, of FTP."""
    size: int = 0
    """Bytes of the content, sent or received; of `stat` the size of the file."""
    names: tuple[str, ...] = ()
    """The names that `list` found, without "." and ".."."""
    login_s: float = 0.0
    """User and password or key, and what comes before the first file: part of `connect_s`; 0 on a
    reused connection."""
    data_connect_s: float = 0.0
    """FTP: asking for the data connection and opening it. It is part of the whole time."""
    transfer_s: float = 0.0
    """The content alone, from the first byte to the answer that confirms the last."""

    @property
    def rate(self) -> float:
        """Bytes per second, while the content was transferred."""
        return self.size / self.transfer_s if self.transfer_s > 0 else 0.0

    @property
    def text(self) -> str:
        """What the server answered."""
        return f"{self.code} {self.message}".strip()

    def raise_for_status(self) -> None:
        """Raises a `StatusError`, which stops the iteration, unless the call is ok."""
        if self.error:
            raise StatusError(self.error, self)


class FTPResult(TransferResult, eq=False, gc=False):
    """How a server answered one call of `self.client.ftp`."""

    protocol: ClassVar[str] = "ftp"


class SFTPResult(TransferResult, eq=False, gc=False):
    """How a server answered one call of `self.client.sftp`."""

    protocol: ClassVar[str] = "sftp"

    mode: int = 0
    """`stat`: kind and permissions, as `os.stat` has them."""
    modified: int = 0
    """`stat`: when it changed, in seconds since 1970."""


class SCPResult(TransferResult, eq=False, gc=False):
    """How a server answered one call of `self.client.scp`."""

    protocol: ClassVar[str] = "scp"


class FTPOptions(TypedDict, total=False):
    """The keywords of the verbs of FTP."""

    timeout: str | float | None
    """Limit for this call, such as `"5s"`, instead of the limit of the step or workflow."""


class SSHOptions(TypedDict, total=False):
    """The keywords of the verbs of SFTP and SCP."""

    key: File | None
    """The private key to log in with: its file, or its text that begins with "-----BEGIN"."""
    known_hosts: File | None
    """The file with the host keys to trust; by default `~/.ssh/known_hosts` on the machine that
    runs the test. With `--insecure` every host key is accepted."""
    timeout: str | float | None
    """Limit for this call, such as `"5s"`, instead of the limit of the step or workflow."""


class FTPVerbs(Protocol):
    """`self.client.ftp`: transfers files over FTP, always in binary mode and passive.

    Addresses are `ftp://user:password@host:port`; `ftps://` begins with TLS, `ftpes://` asks for it
    (AUTH TLS). A connection stays logged in. A call returns its result whatever the server answers;
    it raises `TransportError` if there is no answer or no login.
    """

    async def get(self, url: URL, path: str, **options: Unpack[FTPOptions]) -> FTPResult:
        """Receives a file: `result.content`."""
        ...

    async def put(
        self, url: URL, path: str, data: File | bytes, **options: Unpack[FTPOptions]
    ) -> FTPResult:
        """Sends a file, or bytes. A path that ends with "/" is completed with the file's name."""
        ...

    async def list(self, url: URL, path: str = "", **options: Unpack[FTPOptions]) -> FTPResult:
        """Lists a directory: `result.names`."""
        ...

    async def delete(self, url: URL, path: str, **options: Unpack[FTPOptions]) -> FTPResult:
        """Deletes a file."""
        ...


class SFTPVerbs(Protocol):
    """`self.client.sftp`: transfers files over SSH.

    Addresses are `sftp://user:password@host:port`. A connection stays logged in. A call returns its
    result whatever the server answers; it raises `TransportError` if there is no answer or no
    login.
    """

    async def get(self, url: URL, path: str, **options: Unpack[SSHOptions]) -> SFTPResult:
        """Receives a file: `result.content`."""
        ...

    async def put(
        self, url: URL, path: str, data: File | bytes, **options: Unpack[SSHOptions]
    ) -> SFTPResult:
        """Sends a file, or bytes. A path that ends with "/" is completed with the file's name."""
        ...

    async def list(self, url: URL, path: str = ".", **options: Unpack[SSHOptions]) -> SFTPResult:
        """Lists a directory: `result.names`."""
        ...

    async def stat(self, url: URL, path: str, **options: Unpack[SSHOptions]) -> SFTPResult:
        """Asks for size, permissions and time of change of a file."""
        ...

    async def remove(self, url: URL, path: str, **options: Unpack[SSHOptions]) -> SFTPResult:
        """Removes a file."""
        ...


class SCPVerbs(Protocol):
    """`self.client.scp`: copies files over SSH, as the command `scp -O` does.

    Addresses are `scp://user:password@host:port`. A connection stays logged in, and each copy has a
    channel of its own on it.
    """

    async def get(self, url: URL, path: str, **options: Unpack[SSHOptions]) -> SCPResult:
        """Receives a file: `result.content`."""
        ...

    async def put(
        self, url: URL, path: str, data: File | bytes, **options: Unpack[SSHOptions]
    ) -> SCPResult:
        """Sends a file, or bytes. A path that ends with "/" is completed with the file's name."""
        ...
