"""Detects replays: a sliding window of seen sequences per sender, for a bounded number of them.

Sequences may arrive out of order within the window. An older one counts as a replay, because
the window no longer knows it. Only authenticated senders get a window: otherwise a flood of
invented senders would push out the real ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

WINDOW = 1_024
SENDERS_MAX = 8_192
"""Beyond it the guard forgets the sender that was silent longest."""


class ReplayWindow:
    """A bitmap of the newest `size` sequences; bit 0 is the highest one seen."""

    __slots__ = ("_bits", "_highest", "_mask", "_size")

    def __init__(self, size: int = WINDOW) -> None:
        self._size = size
        self._mask = (1 << size) - 1
        self._highest = -1
        self._bits = 0

    def accept(self, sequence: int) -> bool:
        """Returns True once per sequence."""
        ahead = sequence - self._highest
        if ahead > 0:
            shifted = self._bits << ahead if ahead < self._size else 0
            self._bits = (shifted | 1) & self._mask
            self._highest = sequence
            return True
        behind = -ahead
        if behind >= self._size or self._bits >> behind & 1:
            return False
        self._bits |= 1 << behind
        return True


class ReplayGuard:
    """The windows of all senders."""

    def __init__(self, *, window: int = WINDOW, senders_max: int = SENDERS_MAX) -> None:
        self._window = window
        self._senders_max = senders_max
        self._windows: OrderedDict[Hashable, ReplayWindow] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def accept(self, sender: Hashable, sequence: int) -> bool:
        """Call it only after the sender was authenticated."""
        window = self._windows.get(sender)
        if window is None:
            window = self._windows[sender] = ReplayWindow(self._window)
            if len(self._windows) > self._senders_max:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(sender)
        return window.accept(sequence)
