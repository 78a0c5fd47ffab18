"""The browser: pages of Chromium, by Playwright.

`process` runs one browser per event loop, `vitals` asks a page how it loaded, and `client` is
`self.client.browser`. Start reading at `client`.
"""

from squall.clients.browser.client import BrowserClient

__all__ = ["BrowserClient"]
