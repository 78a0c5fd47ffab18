"""The author's API of the browser: what loading a page took, and `self.client.browser`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypedDict, Unpack

import msgspec

from squall.api.errors import StatusError
from squall.api.results import CallResult

if TYPE_CHECKING:
    from squall.api.arguments import URL

Wait = Literal["commit", "domcontentloaded", "load", "networkidle"]
WAITS = ("commit", "domcontentloaded", "load", "networkidle")


class PageTimings(NamedTuple):
    """Times in seconds, as the browser took them."""

    dns_s: float
    """Name lookup; 0 on a reused connection."""
    connect_s: float
    """TCP connect; 0 on a reused connection."""
    tls_s: float
    """TLS handshake; 0 on a reused connection."""
    first_byte_s: float
    """From the start of the navigation to the first byte of the answer."""
    total_s: float
    """From the call to the event that was waited for."""


class Vitals(msgspec.Struct, eq=False, gc=False):
    """What the browser measured while it loaded a page, in seconds from its start; 0 if it did not
    come that far."""

    ttfb_s: float = 0.0
    dom_s: float = 0.0
    load_s: float = 0.0
    fcp_s: float = 0.0
    lcp_s: float = 0.0
    cls: float = 0.0
    transferred: int = 0
    requests: int = 0
    dns_s: float = 0.0
    connect_s: float = 0.0
    tls_s: float = 0.0


class PageResult(CallResult, msgspec.Struct, eq=False, gc=False):
    """What one call of `self.client.browser` did. Stamps are `time.perf_counter` readings."""

    protocol: ClassVar[str] = "browser"

    action: str
    """"open", "goto", "click", "fill" or "expect"."""
    url: str
    """The address of the page, after redirects."""
    status: int
    """The status of the page itself; 0 if nothing was loaded."""
    reason: str
    """Why the call counts as failed; empty if it does not."""
    started: float
    ended: float
    vitals: Vitals
    title: str = ""
    """The title of the page, for `open` and `goto`."""
    answered: bool = True
    exchanges: int = 1

    @property
    def ok(self) -> bool:
        """Whether the call did what it was asked for; a page with a status of 400 or more did
        not."""
        return not self.reason

    @property
    def failure(self) -> str:
        """Why the call counts as failed; empty if it does not."""
        return self.reason

    @property
    def ttfb_s(self) -> float:
        """Time to the first byte of the page."""
        return self.vitals.ttfb_s

    @property
    def dom_s(self) -> float:
        """Time until the document was read (`DOMContentLoaded`)."""
        return self.vitals.dom_s

    @property
    def load_s(self) -> float:
        """Time until everything on the page was loaded (`load`)."""
        return self.vitals.load_s

    @property
    def fcp_s(self) -> float:
        """First Contentful Paint: until the first text or picture was drawn."""
        return self.vitals.fcp_s

    @property
    def lcp_s(self) -> float:
        """Largest Contentful Paint: until the largest text or picture was drawn."""
        return self.vitals.lcp_s

    @property
    def cls(self) -> float:
        """Cumulative Layout Shift: how far content moved; it has no unit."""
        return self.vitals.cls

    @property
    def transferred(self) -> int:
        """Bytes of the page and what it loaded, as they came over the network."""
        return self.vitals.transferred

    @property
    def requests(self) -> int:
        """How many requests the page made, with the one for itself."""
        return self.vitals.requests

    @property
    def request(self) -> str:
        """Like "OPEN http://shop.test/"."""
        return f"{self.action.upper()} {self.url}"

    @property
    def text(self) -> str:
        """What an error shows."""
        return self.reason or f"{self.status}"

    @property
    def timings(self) -> PageTimings:
        """How long name lookup, connect, TLS, the first byte and the whole call took."""
        found = self.vitals
        return PageTimings(
            found.dns_s, found.connect_s, found.tls_s, found.ttfb_s, self.ended - self.started
        )

    def raise_for_status(self) -> None:
        """Raises a `StatusError`, which stops the iteration, unless the call is ok."""
        if self.reason:
            raise StatusError(self.reason, self)

    def __repr__(self) -> str:
        return f"<PageResult {self.action} {self.status}, {self.url}>"


class OpenOptions(TypedDict, total=False):
    """The keywords of `open` and `goto`."""

    wait: Wait
    """What ends the call: `"load"` (the default), `"domcontentloaded"`, `"networkidle"` or
    `"commit"` (the first byte)."""
    vitals: bool
    """False does without the vitals, which take a moment of their own."""
    timeout: str | float | None
    """Limit for this call, such as `"5s"`, instead of the limit of the step or workflow."""


class ActionOptions(TypedDict, total=False):
    """The keywords of `click`, `fill` and `expect`."""

    timeout: str | float | None
    """Limit for this call, such as `"5s"`, instead of the limit of the step or workflow."""


class BrowserVerbs(Protocol):
    """`self.client.browser`: a page of Chromium, which belongs to the user.

    One browser runs per core process, and each user has a context of its own in it: cookies, cache
    and storage. A call returns its result if the page answered, also with an error; it raises
    `TransportError` if it did not, or not in time.
    """

    @property
    def page(self) -> Any:
        """Playwright's `Page` of the user (`playwright.async_api.Page`). It is there after the
        first call of `open` or `goto`."""
        ...

    async def open(self, url: URL, **options: Unpack[OpenOptions]) -> PageResult:
        """Opens an address in a context without cookies and cache, as a new visitor."""
        ...

    async def goto(self, url: URL, **options: Unpack[OpenOptions]) -> PageResult:
        """Opens an address in the page as it is, with its cookies and cache."""
        ...

    async def click(self, selector: str, **options: Unpack[ActionOptions]) -> PageResult:
        """Clicks the element, once it is there and visible."""
        ...

    async def fill(
        self, selector: str, text: str, **options: Unpack[ActionOptions]
    ) -> PageResult:
        """Writes a text into the field, once it is there and enabled."""
        ...

    async def expect(
        self, selector: str, text: str | None = None, **options: Unpack[ActionOptions]
    ) -> PageResult:
        """Waits until the element is visible and, if a text is given, contains it."""
        ...
