"""One mail, file or page per iteration. `--only` chooses which; TARGET is host and port."""

from squall import (
    URL,
    Email,
    FTPResult,
    PageResult,
    SCPResult,
    SFTPResult,
    SMTPResult,
    Workflow,
    env,
    step,
)

TARGET = env("TARGET")
MAIL: Email = {"sender": "a@x.test", "to": "b@x.test", "text": "x" * 60 + "\n"}


class Smtp(Workflow):
    @step()
    async def send(self, url: URL = f"smtp://{TARGET}", mail: Email = MAIL) -> SMTPResult:
        return await self.client.smtp.send(url, mail)


class Ftp(Workflow):
    @step()
    async def get(self, url: URL = f"ftp://{TARGET}") -> FTPResult:
        return await self.client.ftp.get(url, "/file")


class Sftp(Workflow):
    @step()
    async def get(self, url: URL = f"sftp://ada:x@{TARGET}") -> SFTPResult:
        return await self.client.sftp.get(url, "/file")


class Scp(Workflow):
    @step()
    async def get(self, url: URL = f"scp://ada:x@{TARGET}") -> SCPResult:
        return await self.client.scp.get(url, "/file")


class Browser(Workflow):
    @step()
    async def open(self, url: URL = f"http://{TARGET}/") -> PageResult:
        return await self.client.browser.open(url)
