"""SFTP and SCP: transfer files over SSH, by asyncssh.

`login` opens connections and checks host keys, `sftp` and `scp` are what one call does on one, and
`client` is `self.client.sftp` and `self.client.scp`. Start reading at `client`.
"""

from squall.clients.ssh.client import SCPClient, SFTPClient

__all__ = ["SCPClient", "SFTPClient"]
