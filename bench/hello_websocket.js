// A message of 64 bytes and its echo, again and again on one session per user.
import { WebSocket } from "k6/experimental/websockets";
import { Counter } from "k6/metrics";

const echoes = new Counter("echoes");
const message = "x".repeat(64);

export default function () {
  const socket = new WebSocket(__ENV.TARGET);
  const end = Date.now() + Number(__ENV.SECONDS) * 1000;
  socket.onopen = () => socket.send(message);
  socket.onmessage = () => {
    echoes.add(1);
    if (Date.now() < end) {
      socket.send(message);
    } else {
      socket.close();
    }
  };
}

export function handleSummary(data) {
  return { [__ENV.SUMMARY]: JSON.stringify(data) };
}
