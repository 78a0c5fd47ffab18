"""No test of this folder may show a secret."""

from tests.lab.secret_watch import nothing_secret_is_told

__all__ = ["nothing_secret_is_told"]
