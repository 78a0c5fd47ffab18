"""`self.client.mysql`: MySQL and MariaDB, on asyncmy.

`client` opens connections, `session` uses them.
"""

from squall.clients.mysql.client import MySQLClient

__all__ = ["MySQLClient"]
