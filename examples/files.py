"""Uploads and fetches files over FTP and SFTP; the SFTP server's host key is in `known_hosts`."""

from squall import (
    URL,
    Directory,
    File,
    FileGlob,
    FTPResult,
    Sample,
    SFTPResult,
    Workflow,
    step,
    then,
)


class Pictures(Workflow):
    vus = 5
    iterations = 50
    speed = Sample("MB/s")

    @step()
    async def upload(
        self, url: URL = "ftp://ada:swordfish@127.0.0.1:8021", pictures: FileGlob = "*.png"
    ) -> FTPResult:
        picture = self.vu.random.choice(pictures)
        sent = await self.client.ftp.put(url, f"/{self.vu.id}-{picture}", picture)
        self.speed.add(sent.rate / 1e6)
        return sent

    @then()
    async def browse(self, url: URL = "ftp://ada:swordfish@127.0.0.1:8021") -> FTPResult:
        return await self.client.ftp.list(url, "/")


class Documents(Workflow):
    vus = 5
    iterations = 50

    @step()
    async def store(
        self,
        url: URL = "sftp://ada:swordfish@127.0.0.1:8022",
        documents: Directory = "documents",
        hosts: File = "known_hosts",
    ) -> SFTPResult:
        document = self.vu.random.choice(documents)
        return await self.client.sftp.put(
            url, f"/{self.vu.id}-{document}", document, known_hosts=hosts
        )

    @then()
    async def fetch(
        self,
        store: SFTPResult,
        url: URL = "sftp://ada:swordfish@127.0.0.1:8022",
        hosts: File = "known_hosts",
    ) -> SFTPResult:
        found = await self.client.sftp.get(url, store.path, known_hosts=hosts)
        assert len(found.content) == store.size
        return found
