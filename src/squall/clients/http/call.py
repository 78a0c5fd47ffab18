"""Makes the `Request` of a call from plain or prepared arguments.

A request of prepared arguments only is kept with its URL, so the next call with the same
arguments costs one lookup. A call with plain headers or a JSON body fills in a template that is
kept with its URL; any other plain value is composed for every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, TypeVar, cast

from msgspec import Raw

from squall.api.arguments import Prepared
from squall.api.errors import CallError
from squall.api.http import BodyOptions
from squall.clients.http.body import (
    JSON,
    PreparedBody,
    PreparedFile,
    data_of,
    encoded_json,
    form_of,
    json_of,
    multipart_of,
)
from squall.clients.http.encode import (
    PreparedAuth,
    PreparedCookies,
    PreparedHeaders,
    PreparedParams,
    auth_of,
    cookies_of,
    headers_of,
    params_of,
)
from squall.clients.http.request import Request, RequestTemplate, compose, template_of
from squall.clients.http.shared import HTTPShared
from squall.clients.http.url import PreparedURL

P = TypeVar("P", bound=Prepared)

# The options that `build` takes.
BUILD_OPTIONS = BodyOptions.__optional_keys__ - {"timeout", "redirects", "name"}
# Per URL. An author writes a few sets of header names; computed names must not fill the memory.
_MOST_TEMPLATES = 64


def build(
    shared: HTTPShared,
    method: str,
    url: PreparedURL,
    headers: Any = None,
    params: Any = None,
    cookies: Any = None,
    auth: Any = None,
    path: Any = None,
    data: Any = None,
    json: Any = None,
    form: Any = None,
    files: Any = None,
) -> Request:
    key = None
    if (
        path is None
        and json is None
        and (headers is None or headers.__class__ is PreparedHeaders)
        and (params is None or params.__class__ is PreparedParams)
        and (cookies is None or cookies.__class__ is PreparedCookies)
        and (auth is None or auth.__class__ is PreparedAuth)
        and (data is None or data.__class__ is PreparedBody or data.__class__ is PreparedFile)
        and (form is None or form.__class__ is PreparedBody)
        and (files is None or _all_prepared(files))
    ):
        kept_files = None if files is None else tuple(files.items())
        key = (method, headers, params, cookies, auth, data, form, kept_files)
        known = url.requests.get(key)
        if known is not None:
            return known
    if path is not None and not isinstance(path, Mapping):
        raise CallError(f'path must be a mapping such as {{"id": 7}}, not {type(path).__name__}')
    target = url.filled(cast("Mapping[str, Any] | None", path))
    if params is not None:
        query = _ready(params, PreparedParams, params_of, "params").query
        if query:
            target = b"%b%b%b" % (target, b"&" if b"?" in target else b"?", query)
    request = compose(
        method,
        url,
        target,
        () if headers is None else _ready(headers, PreparedHeaders, headers_of, "headers").fields,
        b"" if cookies is None else _ready(cookies, PreparedCookies, cookies_of, "cookies").line,
        None if auth is None else _ready(auth, PreparedAuth, auth_of, "auth"),
        _body(shared, data, json, form, files),
    )
    if key is not None:
        url.requests[key] = request
    return request


def filled(
    method: str, url: PreparedURL, options: BodyOptions
) -> tuple[bytes, RequestTemplate] | None:
    """The bytes of a call that has no options but `json` and `headers`, from the template for it.
    None if there can be none. The encoded body replaces the plain one in `options`, so that `build`
    makes the same request from them, whatever the author does to the plain one meanwhile."""
    json: Any = options.get("json")
    headers: Any = options.get("headers")
    if (json is not None) + (headers is not None) != len(options) or url.pieces:
        return None
    values: list[Any] = []
    names: Any = ()
    if headers.__class__ is dict:
        names = tuple(headers)
        for value in headers.values():
            if value.__class__ is not str or not value.isascii() or not value.isprintable():
                return None
            values.append(value.encode())
    elif headers.__class__ is PreparedHeaders:
        names = headers
    elif headers is not None:
        return None
    content_type = b""
    if json is not None:
        if isinstance(json, PreparedBody):
            content, content_type = json.content, json.content_type
            if not content_type:
                return None
        else:
            content, content_type = encoded_json(json), JSON
            options["json"] = Raw(content)
        values += (len(content), content)
    key = (method, names, content_type)
    template = url.templates.get(key)
    if template is None:
        template = template_of(method, url, names, content_type)
        if template is None:
            return None
        if len(url.templates) >= _MOST_TEMPLATES:
            url.templates.clear()
        url.templates[key] = template
    return template.form % tuple(values), template


def _body(shared: HTTPShared, data: Any, json: Any, form: Any, files: Any) -> PreparedBody | None:
    count = (data is not None) + (json is not None) + (form is not None) + (files is not None)
    if count == 0:
        return None
    if count > 1 and not (count == 2 and form is not None and files is not None):
        raise CallError("a call takes only one of data=, json= and form=, or files= with form=")
    if files is not None:
        return _multipart(shared, form, files)
    if json is not None:
        return json if isinstance(json, PreparedBody) else json_of(json)
    if data is not None:
        if isinstance(data, PathLike):
            return shared.file(data)
        return data if isinstance(data, PreparedBody) else data_of(_raw(data, "data"))
    if isinstance(form, PreparedFile):
        raise CallError("form= got a file; send it with files= or data=")
    return form if isinstance(form, PreparedBody) else form_of(_raw(form, "form"))


def _multipart(shared: HTTPShared, form: Any, files: Any) -> PreparedBody:
    if not isinstance(files, Mapping):
        kind = type(files).__name__
        raise CallError(f'files must be a mapping such as {{"picture": "cat.png"}}, not {kind}')
    named = cast("Mapping[str, Any]", files)
    read = {name: shared.file(_file(value)) for name, value in named.items()}
    fields = form.value if isinstance(form, PreparedBody) else form
    return multipart_of(fields or {}, read)


def _file(value: Any) -> Any:
    return value if isinstance(value, PreparedFile) else _raw(value, "file")


def _ready(value: Any, kind: type[P], make: Any, what: str) -> P:
    return value if isinstance(value, kind) else make(_raw(value, what))


def _raw(value: Any, what: str) -> Any:
    if isinstance(value, Prepared):
        kind = type(value).__name__.removeprefix("Prepared")
        wanted = "File" if what == "files" else what.capitalize()
        raise CallError(f"{what}= got an argument of kind {kind}; annotate it as {wanted}")
    return value


def _all_prepared(files: Any) -> bool:
    if not isinstance(files, Mapping):
        return False
    return all(isinstance(file, PreparedFile) for file in cast("Mapping[str, Any]", files).values())
