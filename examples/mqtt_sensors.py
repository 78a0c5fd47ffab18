"""MQTT: sensors that report, and one that listens to all of them.

`squall run mqtt_sensors.py -e MQTT_URL=mqtt://127.0.0.1:1883`
"""

from squall import URL, MQTTResponse, Sample, Workflow, check, env, step


class Sensors(Workflow):
    server = env("MQTT_URL", "mqtt://127.0.0.1:1883")
    vus = 20
    iterations = 400

    end_to_end = Sample("ms")

    @step()
    async def report(self, url: URL = f"{server}?id=sensor") -> MQTTResponse:
        """Takes until the broker has acknowledged the message."""
        reading = {"celsius": 20 + self.vu.random.random()}
        topic = f"rooms/{self.vu.id}/heat"
        return await self.client.mqtt.publish(url, topic, reading, qos=1, stamp=True)

    @step("report")
    async def listen(self, url: URL = f"{server}?id=sensor") -> MQTTResponse:
        """Own readings: the first call subscribes, and finds the last reading retained."""
        topic = f"rooms/{self.vu.id}/last"
        await self.client.mqtt.publish(url, topic, "seen", retain=True, stamp=True)
        received = await self.client.mqtt.receive(url, topic, timeout="5s")
        for latency_s in received.latencies:
            self.end_to_end.add(latency_s * 1000)
        return received

    @check("listen")
    def has_the_text(self, listen: MQTTResponse) -> bool:
        return listen.message.text == "seen"
