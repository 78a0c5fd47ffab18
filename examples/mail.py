"""Sends mails with a picture: one that is written before the run, and one for each user."""

from squall import URL, Email, SMTPResult, Workflow, check, step, then


class Mail(Workflow):
    vus = 10
    iterations = 100

    @step()
    async def newsletter(
        self,
        url: URL = "smtp://127.0.0.1:8025",
        letter: Email = {
            "sender": "Shop <news@shop.test>",
            "to": ["ada@shop.test", "grace@shop.test"],
            "subject": "New shoes",
            "text": "They are here.",
            "attachments": "cat.png",
        },
    ) -> SMTPResult:
        return await self.client.smtp.send(url, letter)

    @then()
    async def receipt(self, url: URL = "smtp://127.0.0.1:8025") -> SMTPResult:
        return await self.client.smtp.send(
            url,
            sender="orders@shop.test",
            to=f"user-{self.vu.id}@shop.test",
            subject=f"Order {self.vu.iteration}",
            text="Thank you.",
            timeout="5s",
        )

    @check("newsletter")
    def for_everybody(self, newsletter: SMTPResult) -> bool:
        return newsletter.ok and not newsletter.refused
