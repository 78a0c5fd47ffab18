"""The same request for Locust, with its fast client and no waiting."""

from locust import FastHttpUser, constant, task


class Hello(FastHttpUser):
    wait_time = constant(0)

    @task
    def home(self) -> None:
        self.client.get("/")
