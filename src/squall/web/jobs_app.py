"""The application of `squall web`: the jobs of a cluster, a page for each, files to submit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from squall.api.errors import SquallError, UsageError
from squall.web.feed import RunFeed
from squall.web.job_list import ListedJobs
from squall.web.job_pages import JobPages
from squall.web.run_app import HttpError, application, decoded, need, page_response, run_routes

FILES_MAX = 500

Submit = Callable[[Path], Awaitable[str]]
"""Packs and submits a file and returns the id of its job."""


class SubmitBody(msgspec.Struct, forbid_unknown_fields=True):
    file: str


def stored_files(folder: Path | None) -> list[str]:
    """The workflow files that may be submitted, by name."""
    if folder is None:
        return []
    names = [each.name for each in folder.glob("*.py") if not each.name.startswith((".", "_"))]
    return sorted(names)[:FILES_MAX]


def jobs_app(
    jobs: ListedJobs, pages: JobPages, where: str, folder: Path | None, submit: Submit
) -> ASGIApp:
    """`where` names the cluster; `folder` has the files that may be submitted."""

    async def page(_: Request) -> Response:
        return page_response("jobs.html")

    async def listed(request: Request) -> Response:
        need(request, "view")
        try:
            entries = await jobs.entries()
        except SquallError as error:
            raise HttpError(503, str(error)) from None
        may_control = request.scope["squall_role"] == "control"
        found: dict[str, Any] = {"where": where, "mayControl": may_control, "jobs": entries}
        return JSONResponse(found | {"files": stored_files(folder) if may_control else []})

    async def submitted(request: Request) -> Response:
        need(request, "control")
        body: SubmitBody = await decoded(request, SubmitBody)
        # A name of the listing, so that no path leads out of the folder.
        if folder is None or body.file not in stored_files(folder):
            raise HttpError(404, "no such file; squall web --files DIR names their folder")
        try:
            job = await submit(folder / body.file)
        except UsageError as error:
            raise HttpError(400, str(error)) from None
        except SquallError as error:
            raise HttpError(409, str(error)) from None
        return JSONResponse({"job": job})

    async def feed_of(request: Request) -> RunFeed:
        try:
            return await pages.feed_of(request.path_params["job"])
        except SquallError as error:
            raise HttpError(404, str(error)) from None

    return application(
        [
            Route("/", page),
            Route("/api/jobs", listed),
            Route("/api/submit", submitted, methods=["POST"]),
            *run_routes("/jobs/{job}", feed_of),
        ]
    )
