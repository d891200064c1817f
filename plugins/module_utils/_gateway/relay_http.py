# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""HTTP/1.1 as the relay needs it: heads of requests and answers, and where the body of one ends. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import re
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths

MAX_HEAD = 65536
MAX_LINE = 4096  # of a chunk's length, with what may stand behind it
END = b"\r\n\r\n"
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_REQUEST = re.compile(rb"([A-Z]{3,10}) (/[!-~]*) HTTP/1\.[01]")
_ANSWER = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")
_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_SALT = re.compile(rb'"cache_salt"')
# An engine takes 128 characters (vLLM 0.33), of at most 12 bytes.
_OWN_SALT = re.compile(rb'"cache_salt"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}"((?:[^"\\]|\\.){0,1536})"', re.DOTALL)
# Of one connection, and so never passed on; what a body ends with is said anew.
HOP = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade content-length expect host".split()
)
OURS = (b"x-sparkmatrix-", b"x-accel-")  # between nginx and the relay; nginx does what the second kind says
Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Head:
    """Of a request: ``method`` and ``target``; of an answer: ``status`` and ``reason``."""

    fields: Fields
    method: bytes = b""
    target: bytes = b""
    status: int = 0
    reason: bytes = b""

    def get(self, name: bytes) -> bytes:
        """The value of a field; empty where there is none. :class:`ValueError` where values contradict each other."""
        found = {value for field, value in self.fields if field.lower() == name}
        if len(found) > 1:
            raise ValueError(f"{name.decode()} is there with several values")
        return found.pop() if found else b""

    @property
    def length(self) -> int | None:
        """Of the body, as the head says; None where it does not."""
        text = self.get(b"content-length")
        if text and not _LENGTH.fullmatch(text):
            raise ValueError("Content-Length is no number")
        return int(text) if text else None

    @property
    def chunked(self) -> bool:
        coding = self.get(b"transfer-encoding").lower()
        if coding not in (b"", b"chunked"):
            raise ValueError("a transfer coding that is not known")
        return bool(coding)

    @property
    def passed(self) -> Fields:
        """The fields that are for the other side."""
        named = ((name.lower(), name, value) for name, value in self.fields)
        return tuple((name, value) for low, name, value in named if low not in HOP and not low.startswith(OURS))


def request_head(text: bytes) -> Head:
    """Raises :class:`ValueError`, as the others."""
    first, fields = _lines(text)
    match = _REQUEST.fullmatch(first)
    if not match:
        raise ValueError("no line of a request")
    return Head(fields, method=match[1], target=match[2])


def answer_head(text: bytes) -> Head:
    first, fields = _lines(text)
    match = _ANSWER.fullmatch(first)
    if not match:
        raise ValueError("no line of an answer")
    return Head(fields, status=int(match[1]), reason=match[2] or b"")


def written(first: bytes, fields: Fields) -> bytes:
    return b"".join((first, b"\r\n", *(b"%b: %b\r\n" % field for field in fields), b"\r\n"))


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def error(message: str, kind: str, code: str, param: str | None = None) -> str:
    """An error as OpenAI's API has them; ``type`` beside it makes it one of Anthropic's."""
    return json.dumps(
        {"type": "error", "error": {"message": message, "type": kind, "param": param, "code": code}}, ensure_ascii=True
    )


def error_event(path: str, text: str) -> bytes:
    """``text`` of :func:`error` as the last event of a stream, as clients of ``path`` expect it. None says that the
    answer is whole: whoever does not know errors sees a connection that ends too early."""
    named = path.startswith((api_paths.MESSAGES, api_paths.RESPONSES))
    return f"{'event: error' + chr(10) if named else ''}data: {text}\n\n".encode()


def salted(body: bytes, secret: str, client: bytes) -> bytes:
    """``body`` with whom it shares what an engine has computed: the same client, who may divide that further, but reach
    nobody else's. Nothing is parsed: of several names engines take the last, and that is ours. What looks like one of
    the client's own only divides what is the client's."""
    code = json.detect_encoding(body)
    try:
        text = body if code.startswith("utf-8") else body.decode(code, "surrogatepass").encode("utf-8", "surrogatepass")
    except ValueError:
        return body
    told = text.rstrip(b" \t\r\n")
    if not told.endswith(b"}"):  # no object, so no request
        return body
    places = itertools.islice(_SALT.finditer(told), 16)
    own = b"\0".join(found[1] for found in (_OWN_SALT.match(told, place.start()) for place in places) if found)
    digest = hmac.new(secret.encode(), len(client).to_bytes(4, "big") + client + own, hashlib.sha256).digest()
    before = told[:-1].rstrip(b" \t\r\n")
    comma = b"" if before.endswith(b"{") else b","
    return b'%b%b"cache_salt":"%b"}' % (before, comma, base64.urlsafe_b64encode(digest).rstrip(b"="))


def _lines(text: bytes) -> tuple[bytes, Fields]:
    first, *lines = text.split(b"\r\n")
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("a line that is no field")
        fields.append((name, value))
    return first, tuple(fields)


class Body:
    """The body of an answer while it comes. ``done``: all of it is there; one without length ends with its connection,
    and so is never known to be whole (``open_end``)."""

    def __init__(self, head: Head, method: bytes) -> None:
        self.chunked = head.chunked
        self.left = 0  # bytes of the payload that are still to come: of all, or of the present chunk
        self.rest = b""  # bytes of a line that is not whole
        self.closing = False  # the line end behind a chunk is still to come
        self.trailer = False
        self.none = method == b"HEAD" or head.status in (204, 304)
        self.done = self.none
        self.open_end = False
        if self.done or self.chunked:
            return
        length = head.length
        if length is None:
            self.open_end = True
        else:
            self.left, self.done = length, length == 0

    def feed(self, data: bytes) -> bytes:
        """The payload in ``data``; what is behind the body's end is dropped."""
        if self.open_end:
            return data
        if self.done:
            return b""
        if not self.chunked:
            payload = data[: self.left]
            self.left -= len(payload)
            self.done = self.left == 0
            return payload
        if self.rest:
            data, self.rest = self.rest + data, b""
        parts, at, end = [], 0, len(data)
        while at < end:
            if self.left:
                part = data[at : at + self.left]
                parts.append(part)
                at += len(part)
                self.left -= len(part)
                self.closing = not self.left
                continue
            line_end = data.find(b"\r\n", at, at + MAX_LINE)
            if line_end < 0:
                if end - at >= MAX_LINE:
                    raise ValueError("a chunk whose length does not end")
                self.rest = data[at:]
                break
            line, at = data[at:line_end], line_end + 2
            if self.closing:
                if line:
                    raise ValueError("a chunk that is longer than it said")
                self.closing = False
            elif self.trailer:
                if not line:
                    self.done = True
                    break
            else:
                size = _SIZE.fullmatch(line)
                if not size:
                    raise ValueError("a chunk without a length")
                self.left = int(size[1], 16)
                self.trailer = not self.left
        return parts[0] if len(parts) == 1 else b"".join(parts)
