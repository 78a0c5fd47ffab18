"""The author's API of the browser: what loading a page took, and `self.client.browser`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypedDict, Unpack

from squall.api.errors import StatusError
from squall.api.protocols.response import ProtocolResponse

if TYPE_CHECKING:
    from squall.api.arguments import URL

Wait = Literal["commit", "domcontentloaded", "load", "networkidle"]
WAITS = ("commit", "domcontentloaded", "load", "networkidle")


class PageResult(ProtocolResponse, eq=False, gc=False):
    """What one call did. The times that the browser measured are seconds from the start of the
    navigation, and 0 if the page did not come that far; `click`, `fill` and `expect` have none."""

    protocol: ClassVar[str] = "browser"

    status: int = 0
    """The status of the page itself, after redirects; 0 if nothing was loaded."""
    location: str = ""
    """The address of the page after the call."""
    ttfb_s: float = 0.0
    """Time to the first byte of the page."""
    dom_s: float = 0.0
    """Until the document was read (`DOMContentLoaded`)."""
    load_s: float = 0.0
    """Until everything on the page was loaded (`load`)."""
    fcp_s: float = 0.0
    """First Contentful Paint: until the first text or picture was drawn."""
    lcp_s: float = 0.0
    """Largest Contentful Paint: until the largest text or picture was drawn."""
    cls: float = 0.0
    """Cumulative Layout Shift: how far content moved; it has no unit."""
    transferred: int = 0
    """Bytes of the page and what it loaded, as they came over the network. A server of another
    origin hides its own, unless it sends `Timing-Allow-Origin`."""
    requests: int = 0
    """How many requests the page made, with the one for itself."""

    @property
    def text(self) -> str:
        """The status, and where the page is."""
        return f"{self.status} {self.location}"

    def raise_for_status(self) -> None:
        """Raises a `StatusError`, which stops the iteration, unless the call is ok."""
        if self.error:
            raise StatusError(self.error, self)


class OpenOptions(TypedDict, total=False):
    """The keywords of `open` and `goto`."""

    wait: Wait
    """What ends the call: `"load"` (the default), `"domcontentloaded"`, `"networkidle"` or
    `"commit"` (the first byte)."""
    vitals: bool
    """Whether to take the times of the browser, which costs a moment after the call; by default
    `open` does and `goto` does not."""
    fresh: bool
    """True begins with a new context, without cookies, cache and storage: a new visitor."""
    timeout: str | float | None
    """Limit for this call, such as `"5s"`, instead of the limit of the step or workflow."""


class ActionOptions(TypedDict, total=False):
    """The keywords of `click`, `fill` and `expect`."""

    timeout: str | float | None
    """Limit for this call, such as `"5s"`, instead of the limit of the step or workflow."""


class BrowserVerbs(Protocol):
    """`self.client.browser`: a page of Chromium, which belongs to the user.

    One browser runs per core process, and each user has a context of its own in it, with cookies,
    cache and storage, as long as the user lives. A call returns its result if the page answered,
    also with an error; it raises `TransportError` if it did not, or not in time.
    """

    @property
    def page(self) -> Any:
        """Playwright's `Page` of the user (`playwright.async_api.Page`). It is there after the
        first call of `open` or `goto`."""
        ...

    async def open(self, url: URL, **options: Unpack[OpenOptions]) -> PageResult:
        """Opens an address in the page of the user and measures how it loads."""
        ...

    async def goto(self, url: URL, **options: Unpack[OpenOptions]) -> PageResult:
        """Opens an address in the page of the user."""
        ...

    async def click(self, selector: str, **options: Unpack[ActionOptions]) -> PageResult:
        """Clicks the element, once it is there and visible."""
        ...

    async def fill(self, selector: str, text: str, **options: Unpack[ActionOptions]) -> PageResult:
        """Writes a text into the field, once it is there and enabled."""
        ...

    async def expect(
        self, selector: str, text: str | None = None, **options: Unpack[ActionOptions]
    ) -> PageResult:
        """Waits until the element is visible and, if a text is given, contains it."""
        ...
