"""Messages as gRPC sends them: a flag, four bytes of length, the message. Nothing here does I/O."""

from __future__ import annotations

import struct
import zlib

PREFIX_BYTES = 5
_pack = struct.Struct(">BI").pack
_read = struct.Struct(">BI").unpack_from
_COMPRESSED = 1
# gzip, and zlib as HTTP's deflate has it.
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
ENCODINGS = ",".join(("identity", *_WINDOWS))


class FramingError(ValueError):
    """The peer sent bytes that are no valid message."""


def framed(message: bytes, encoding: str = "") -> bytes:
    if encoding:
        made = zlib.compressobj(wbits=_WINDOWS[encoding])
        message = made.compress(message) + made.flush()
        return _pack(_COMPRESSED, len(message)) + message
    return _pack(0, len(message)) + message


def single(body: bytes) -> bytes | None:
    """The message of a body that has exactly one, uncompressed, in one piece; else None."""
    if len(body) >= PREFIX_BYTES:
        flag, size = _read(body)
        if not flag and size == len(body) - PREFIX_BYTES:
            return body[PREFIX_BYTES:]
    return None


class MessageDecoder:
    """Cuts a body into messages as it comes.

    State: `_rest` are pieces of an incomplete message, `_have` their bytes, and `_need` the bytes
    of the whole with its prefix (0 while that is not known), so that a large one is joined once.
    """

    __slots__ = ("_have", "_most_bytes", "_need", "_rest", "encoding")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        # What the head of the answer says about messages that have the flag.
        self.encoding = ""
        self._rest: list[bytes] = []
        self._have = 0
        self._need = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Raises `FramingError`."""
        if self._rest:
            self._rest.append(data)
            self._have += len(data)
            if self._have < max(self._need, PREFIX_BYTES):
                return []
            data = b"".join(self._rest)
            self._rest = []
        found: list[bytes] = []
        position, size, need = 0, len(data), 0
        while size - position >= PREFIX_BYTES:
            flag, length = _read(data, position)
            if length > self._most_bytes:
                raise FramingError(f"message larger than {self._most_bytes >> 20} MiB")
            end = position + PREFIX_BYTES + length
            if end > size:
                need = end - position
                break
            message = data[position + PREFIX_BYTES : end]
            found.append(self._plain(message) if flag else message)
            position = end
        if position < size:
            self._rest, self._have, self._need = [data[position:]], size - position, need
        return found

    @property
    def is_between(self) -> bool:
        """Whether the body may end here."""
        return not self._rest

    def _plain(self, message: bytes) -> bytes:
        window = _WINDOWS.get(self.encoding)
        if window is None:
            raise FramingError(f"a message in an encoding that was not offered: {self.encoding!r}")
        stream = zlib.decompressobj(window)
        try:
            # One byte more than allowed: the end of a message of the largest size is read, too.
            plain = stream.decompress(message, self._most_bytes + 1)
        except zlib.error:
            raise FramingError(f"a message that is not {self.encoding}") from None
        if len(plain) > self._most_bytes:
            raise FramingError(f"message larger than {self._most_bytes >> 20} MiB")
        if not stream.eof or stream.unused_data:
            raise FramingError(f"a message that is not {self.encoding}")
        return plain
