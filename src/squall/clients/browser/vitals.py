"""Reads from a page what the browser measured while it loaded."""

from __future__ import annotations

from typing import Any, TypedDict

# A page without content has no paint at all; one that is drawn late must not hold the user long.
_PATIENCE_MS = 500
# How often the page looks whether both paints have come. A frame takes 16 ms.
_PAUSE_MS = 8

_SCRIPT = """
([patience, pause]) => new Promise((resolve) => {
  let lcp = 0, cls = 0;
  const began = performance.now();
  const watch = (type, take) => {
    try {
      new PerformanceObserver((list) => list.getEntries().forEach(take))
        .observe({ type, buffered: true });
    } catch (error) { /* not known to this browser */ }
  };
  watch('largest-contentful-paint', (entry) => { lcp = entry.startTime; });
  watch('layout-shift', (entry) => { if (!entry.hadRecentInput) cls += entry.value; });
  const look = () => {
    const paint = performance.getEntriesByName('first-contentful-paint')[0];
    if ((!paint || !lcp) && performance.now() - began < patience) {
      setTimeout(look, pause);
      return;
    }
    const page = performance.getEntriesByType('navigation')[0];
    const parts = performance.getEntriesByType('resource');
    const own = page ? page.transferSize : 0;
    resolve({
      ttfb: page ? page.responseStart : 0,
      dom: page ? page.domContentLoadedEventEnd : 0,
      load: page ? page.loadEventEnd : 0,
      fcp: paint ? paint.startTime : 0,
      lcp, cls,
      transferred: parts.reduce((sum, part) => sum + part.transferSize, own),
      requests: parts.length + (page ? 1 : 0),
    });
  };
  // The observers hand over what they have in a task of its own.
  setTimeout(look, 0);
})
"""


class Vitals(TypedDict, total=False):
    """Fields of a `PageResult`."""

    ttfb_s: float
    dom_s: float
    load_s: float
    fcp_s: float
    lcp_s: float
    cls: float
    transferred: int
    requests: int


async def vitals_of(page: Any) -> Vitals:
    found: dict[str, float] = await page.evaluate(_SCRIPT, [_PATIENCE_MS, _PAUSE_MS])
    return Vitals(
        ttfb_s=found["ttfb"] / 1000,
        dom_s=found["dom"] / 1000,
        load_s=found["load"] / 1000,
        fcp_s=found["fcp"] / 1000,
        lcp_s=found["lcp"] / 1000,
        cls=found["cls"],
        transferred=int(found["transferred"]),
        requests=int(found["requests"]),
    )
