"""The configuration that all outputs to Google Cloud share: project and credentials.

Without `credentials` they come from the places that every Google Cloud program searches:
`GOOGLE_APPLICATION_CREDENTIALS`, the login of `gcloud`, the account of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from squall.reporting.outputs.libraries import library


@dataclass(frozen=True, kw_only=True)
class GoogleAccess:
    project: str = ""
    credentials: str = ""
    """The file with the key of a service account."""
    endpoint: str = ""
    """The URL of an emulator; it gets no credentials."""
    timeout_s: float = 60.0


def client_options(access: GoogleAccess) -> dict[str, Any]:
    """The arguments that every client of Google takes."""
    own: dict[str, Any] = {"project": access.project or None}
    if access.endpoint:
        own["credentials"] = library("google.auth.credentials").AnonymousCredentials()
        own["client_options"] = {"api_endpoint": access.endpoint}
    elif access.credentials:
        accounts = library("google.oauth2.service_account")
        own["credentials"] = accounts.Credentials.from_service_account_file(
            access.credentials, scopes=["https://www.googleapis.com/auth/cloud-platform"]
        )
    return own
