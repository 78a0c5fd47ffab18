"""The journey of journey.py for Locust, with its fast client. A check that fails marks its request
as failed, which is how Locust counts checks."""

from locust import FastHttpUser, constant, task


class Shop(FastHttpUser):
    wait_time = constant(0)
    number = 0

    @task
    def journey(self) -> None:
        self.client.get("/")
        with self.client.get("/items", catch_response=True) as answer:
            items = answer.json()["items"]
            if len(items) != 20:
                answer.failure("not 20 items")
        self.number += 1
        with self.client.post(
            "/orders",
            json={"item": items[self.number % 20]["id"], "count": 1},
            headers={"X-Shopper": f"user-{id(self)}"},
            catch_response=True,
        ) as answer:
            if answer.status_code != 201:
                answer.failure("not accepted")
