// The same request for k6. TARGET is the address, SUMMARY the file for its counts.
import http from 'k6/http';

export default function () {
  http.get(`${__ENV.TARGET}/`);
}

export function handleSummary(data) {
  return { [__ENV.SUMMARY]: JSON.stringify(data) };
}
