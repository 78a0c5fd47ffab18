"""The classes that control decides on. The wire defines them; here is only their order.

Nothing else in this package may order classes by hand.
"""

from __future__ import annotations

from squall.wire.header import MessageClass

SHARED_CLASSES = (MessageClass.DISPATCH, MessageClass.DATA, MessageClass.TELEMETRY)
"""Those that can be shed; the last one is shed first."""

__all__ = ["SHARED_CLASSES", "MessageClass"]
