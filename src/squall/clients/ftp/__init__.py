"""FTP: transfers files, in binary mode over passive data connections, by aioftp.

`session` is a control connection that is logged in, with its transfers; `client` is
`self.client.ftp`. Start reading at `client`.
"""

from squall.clients.ftp.client import FTPClient

__all__ = ["FTPClient"]
