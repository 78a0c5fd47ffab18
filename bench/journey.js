// The journey of journey.py for k6. TARGET is the address, SUMMARY the file for its counts.
import http from 'k6/http';
import { check } from 'k6';

export default function () {
  http.get(`${__ENV.TARGET}/`);
  const items = http.get(`${__ENV.TARGET}/items`).json().items;
  check(items, { '20 items': (list) => list.length === 20 });
  const order = http.post(
    `${__ENV.TARGET}/orders`,
    JSON.stringify({ item: items[__ITER % 20].id, count: 1 }),
    { headers: { 'Content-Type': 'application/json', 'X-Shopper': `user-${__VU}` } },
  );
  check(order, { accepted: (answer) => answer.status === 201 });
}

export function handleSummary(data) {
  return { [__ENV.SUMMARY]: JSON.stringify(data) };
}
