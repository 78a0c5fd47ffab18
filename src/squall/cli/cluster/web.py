"""`squall web --to HOST:PORT | --store URL`: a page of a cluster, until Ctrl-C; and the page of a
node, which starts this command itself."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from argparse import Namespace
from pathlib import Path

from squall.api.errors import UsageError
from squall.cli.shared.cluster_access import client_access
from squall.cli.shared.job_progress import interrupts
from squall.cli.shared.node_page import handed_page
from squall.cluster.client.access import ClusterAccess
from squall.cluster.client.connection import ClientConnection, connected
from squall.cluster.client.pack import packed
from squall.engine.run_options import RunOptions
from squall.runtime.real.runtime import CLOCK
from squall.web.server import BoundPage, bind_page, serve_here


def execute(arguments: Namespace) -> int:
    if arguments.of_node:
        # A node that starts has no group and no store yet; the page says so until it has.
        bound, access = handed_page(), client_access(arguments, comes_first=True)
        return asyncio.run(_served(access, bound, None, of_node=True))
    folder = _folder(arguments.files)
    access = client_access(arguments)
    return asyncio.run(_served(access, bind_page(arguments.listen, "--listen"), folder))


def _folder(text: str | None) -> Path | None:
    if text is None:
        return None
    folder = Path(text)
    if not folder.is_dir():
        raise UsageError(f"--files {text}: there is no such folder")
    return folder.resolve()


async def _served(
    access: ClusterAccess, bound: BoundPage, folder: Path | None, *, of_node: bool = False
) -> int:
    from squall.web.job_list import ListedJobs
    from squall.web.job_pages import JobPages
    from squall.web.jobs_app import jobs_app

    async with connected(access, None) as connection:
        if not of_node:
            # A cluster that is not there is reported now and not on the page.
            await connection.ready(within_s=None)
            await connection.client.jobs(1)
        jobs, pages = ListedJobs(connection.client, CLOCK), JobPages(connection.client)

        async def submit(path: Path) -> str:
            return await _submitted(connection, path)

        app = jobs_app(jobs, pages, connection.client.managers.shown, folder, submit)
        over = asyncio.Event()
        with interrupts(over.set):
            serving = asyncio.ensure_future(serve_here(bound, app))
            if not of_node:
                print(f"page  {bound.control_address}", file=sys.stderr)
                print(f"page to read only  {bound.view_address}", file=sys.stderr)
            stopped = asyncio.ensure_future(over.wait())
            try:
                await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await pages.close()
                await jobs.close()
                stopped.cancel()
                serving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await serving
    return 0


async def _submitted(connection: ClientConnection, path: Path) -> str:
    options = RunOptions(file=str(path), command=("web", path.name))
    datacenters = await connection.client.datacenters_of(None)
    submission, bundle = await packed(options, None, datacenters)
    accepted, entry = await connection.client.submit(submission, bundle.data, connection.journal)
    await connection.journal.close(entry)
    return accepted.job
