"""GraphQL documents: parsed once, and encoded once as the body of a request."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

import msgspec
from graphql import GraphQLError, OperationDefinitionNode, parse

from squall.api.arguments import Prepared
from squall.api.errors import CallError
from squall.clients.http.body import PreparedBody

_JSON = b"application/json"
# Texts that are used as documents during the run, kept up to this many.
_MOST_DOCUMENTS = 256
_encode = msgspec.json.Encoder().encode


class PreparedDocument(Prepared):
    """A document. `operations` are the names of its operations; `kinds` says what they are."""

    __slots__ = ("bodies", "digest", "kinds", "operations", "text")

    def __init__(self, value: Any, text: str, kinds: dict[str, str]) -> None:
        super().__init__(value)
        self.text = text
        self.kinds = kinds
        self.operations = list(kinds)
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        # Bodies without variables, by operation and by whether the text is left out.
        self.bodies: dict[tuple[str | None, bool, bool], bytes] = {}

    def body(
        self,
        variables: Mapping[str, Any] | None,
        operation: str | None,
        *,
        hashed: bool = False,
        whole: bool = True,
    ) -> bytes:
        """The JSON of a request. With `hashed` it names the document by its hash; without `whole`
        it leaves the document out."""
        key = (operation, hashed, whole)
        known = self.bodies.get(key)
        if known is None:
            known = self.bodies[key] = self._begun(*key)
        if not variables:
            return known + b"}"
        try:
            return known + b',"variables":' + _encode(variables) + b"}"
        except TypeError as error:
            raise CallError(f"variables cannot be sent as JSON: {error}") from None

    def _begun(self, operation: str | None, hashed: bool, whole: bool) -> bytes:
        if operation is not None and operation not in self.kinds:
            known = ", ".join(filter(None, self.operations)) or "none with a name"
            raise CallError(f'no operation "{operation}" in the document; it has {known}')
        if operation is None and len(self.operations) > 1:
            known = ", ".join(self.operations)
            raise CallError(f"the document has several operations; name one: operation= {known}")
        fields: dict[str, Any] = {"query": self.text} if whole else {}
        if operation is not None:
            fields["operationName"] = operation
        if hashed:
            fields["extensions"] = {"persistedQuery": {"version": 1, "sha256Hash": self.digest}}
        return _encode(fields)[:-1]


_known: dict[str, PreparedDocument] = {}


def document_of(value: Any) -> PreparedDocument:
    """Parses a document. Raises a `CallError` that names the place of a syntax error."""
    if isinstance(value, PreparedDocument):
        return value
    if not isinstance(value, str):
        raise CallError(f"a GraphQL document must be text, not {type(value).__name__}")
    known = _known.get(value)
    if known is None:
        text = inspect.cleandoc(value)
        try:
            parsed = parse(text)
        except GraphQLError as error:
            at = f"line {error.locations[0].line}: " if error.locations else ""
            raise CallError(f"not a GraphQL document: {at}{error.message}") from None
        kinds = {
            "" if node.name is None else node.name.value: node.operation.value
            for node in parsed.definitions
            if isinstance(node, OperationDefinitionNode)
        }
        if not kinds:
            raise CallError("not a GraphQL document: it has no query, mutation or subscription")
        if len(_known) >= _MOST_DOCUMENTS:
            _known.clear()
        known = _known[value] = PreparedDocument(value, text, kinds)
    return known


def json_body(content: bytes) -> PreparedBody:
    return PreparedBody(content, content, _JSON)
