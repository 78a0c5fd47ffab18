"""What an operation becomes from whatever a server answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.api.http import HTTPResponse, ResponseHead
from squall.clients.graphql.client import _batch, _response

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "errors", "message", "path", "extensions", "code"]), inner
        )
    ),
    max_leaves=12,
)


class Source:
    address, method = "http://shop.test/graphql", "POST"


def answered(body: bytes, status: int = 200) -> HTTPResponse:
    head = ResponseHead(b"HTTP/1.1 %d\r\n\r\n" % status, status, len(body), special=False)
    return HTTPResponse(status, head, body, Source(), 1.0, 2.0, 3.0)  # type: ignore[arg-type]


def fails_by_the_standard(found: Any) -> bool:
    """GraphQL over HTTP: a map with data (null, too) or errors, which are a failure."""
    return not isinstance(found, dict) or "data" not in found or bool(found.get("errors"))


@given(JSON, st.sampled_from([200, 200, 400, 502]))
def test_any_json_is_an_answer_or_a_failure(found: Any, status: int) -> None:
    response = _response(answered(json.dumps(found).encode(), status))
    if status != 200 or fails_by_the_standard(found):
        assert response.failure
        assert not response.ok
    elif not response.fault:
        assert response.data == found["data"]
    batch = _batch(answered(json.dumps([found, found]).encode(), status), 2)
    assert not response.failure or batch.failure


@given(st.binary(max_size=60))
def test_invented_bytes_are_a_failure(body: bytes) -> None:
    try:
        json.loads(body)
    except ValueError:
        assert _response(answered(body)).failure == "the answer is not one of GraphQL"
        assert _batch(answered(body), 1).failure == "the answer is not one of GraphQL"


@pytest.mark.parametrize(
    ("body", "status", "failure"),
    [
        (b'{"data":null}', 200, ""),
        (b'{"data":{"a":1},"errors":[]}', 200, ""),
        (b"{}", 200, "the answer is not one of GraphQL"),
        (b'{"message":"Forbidden"}', 200, "the answer is not one of GraphQL"),
        (b'{"message":"Forbidden"}', 403, "403 Forbidden"),
        (b'{"data":{"a":1}}', 502, "502 Bad Gateway"),
        (b'{"errors":[{"message":"no"}]}', 400, "no"),
        (b'{"data":1,"errors":[{"message":"no","extensions":{"code":"BAD"}}]}', 200, "BAD"),
        (b'{"errors":[{}]}', 200, "an error without a message"),
        (b'{"data":' + b"[" * 5000 + b"]" * 5000 + b"}", 200, "the answer is not one of GraphQL"),
        (b"[]", 200, "the answer is not one of GraphQL"),
    ],
)
def test_answers_and_their_failures(body: bytes, status: int, failure: str) -> None:
    assert _response(answered(body, status)).failure == failure


def test_a_batch_has_an_answer_for_each_operation() -> None:
    found = _batch(answered(b'[{"data":1},{"errors":[{"message":"no"}]}]'), 2)
    assert [part.ok for part in found.parts] == [True, False]
    assert found.failure == "no"
    assert _batch(answered(b'[{"data":1}]'), 2).failure == "1 answers to 2 operations"
    assert _batch(answered(b'{"errors":[{"message":"no batches"}]}'), 2).failure == "no batches"
    assert _batch(answered(b'[{"data":1},{}]'), 2).failure
    assert _batch(answered(b'[{"data":1}]', 502), 1).failure == "502 Bad Gateway"
