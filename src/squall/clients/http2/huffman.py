"""The Huffman code of HPACK, from the package `hpack`; texts that come again are kept."""

from __future__ import annotations

from functools import lru_cache

from hpack import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman

_ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@lru_cache(4096)
def decoded_text(code: bytes) -> bytes:
    """Raises `ValueError` for what is no Huffman code."""
    try:
        return decode_huffman(code)
    except HPACKDecodingError as error:
        raise ValueError(str(error)) from error


def encoded_text(text: bytes) -> bytes:
    return _ENCODER.encode(text)
