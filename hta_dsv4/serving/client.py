"""How do we speak to a server? An HTTP client that goes to one host and nowhere else, and says what failed in a line.

No proxy or credential is taken from the environment, no redirect is followed, and a key is never printed.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

import httpx
import msgspec

from hta_dsv4.errors import HtaDsv4Error

CONNECT_S = 10.0
READ_S = 120.0
_GRACE_S = 10.0  # for a whole answer, beyond its longest silence
_LONGEST_BODY = 16 << 20  # bytes of an answer that is read; /metrics of a large server is about 1 MB
_SHOWN = 300  # characters of a server's own message that are passed on


class ServerError(HtaDsv4Error):
    """The server cannot be reached, or answered something that we cannot go on with."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, read whole.

    Attributes:
        status: HTTP status.
        body: as sent.
    """

    status: int
    body: bytes

    def json(self) -> object:
        """The body as JSON, ``None`` where it is none."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return None

    @property
    def message(self) -> str:
        """What the server says went wrong, one line; empty where it says nothing."""
        return message_of(self.body)


@dataclass(frozen=True)
class ServerUrl:
    """Where a server is.

    Attributes:
        text: scheme, host, port and path, without a trailing slash or ``/v1``.
        key: sent as a bearer token; never shown.
    """

    text: str
    key: str | None = field(default=None, repr=False)

    # The text is not repeated: it may hold a password.
    _WITH_PASSWORD: ClassVar[str] = (
        "--server: a name or password in the URL; give http://HOST:PORT, and the key by HTA_DSV4_API_KEY"
    )

    @classmethod
    def parse(cls, text: str, key: str | None = None) -> ServerUrl:
        """Read a URL as a user gives it: ``http://host:port``, ``host:port``, with or without ``/v1``.

        Raises:
            HtaDsv4Error: it names no host, another protocol, or carries a password.
        """
        whole = text.strip() if "://" in text else f"http://{text.strip()}"
        remedy = "give http://HOST:PORT"
        try:
            parts = urlsplit(whole)
            port, host = parts.port, parts.hostname  # reading the port checks it
            httpx.URL(whole)
        except (ValueError, httpx.InvalidURL) as error:
            if "@" in whole:
                raise HtaDsv4Error(cls._WITH_PASSWORD) from None
            raise HtaDsv4Error(f"--server {text}: not a URL ({error}); {remedy}") from error
        if parts.username is not None or parts.password is not None:
            raise HtaDsv4Error(cls._WITH_PASSWORD)
        if parts.scheme not in ("http", "https") or not host or port == 0:
            raise HtaDsv4Error(f"--server {text}: not the address of an HTTP server; {remedy}")
        if parts.query or parts.fragment:
            raise HtaDsv4Error(f"--server {text}: has a query or a fragment; {remedy}")
        key = None if key is None else key.strip()  # of a file it brings its line's end along
        if key is not None and not (key.isascii() and key.isprintable() and key):
            raise HtaDsv4Error("the API key is empty or holds characters that no HTTP header can carry")
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(f"{parts.scheme}://{parts.netloc}{path}", key)


def open_client(url: ServerUrl, read_timeout_s: float = READ_S) -> httpx.AsyncClient:
    """An HTTP client for one server; close it, or use it as an async context.

    Args:
        url: the server.
        read_timeout_s: longest silence of an answer, seconds.
    """
    # what is not packed cannot swell: a kilobyte of gzip may hold a gigabyte
    headers = {"user-agent": "hta-dsv4", "accept-encoding": "identity"}
    if url.key is not None:
        headers["authorization"] = f"Bearer {url.key}"
    return httpx.AsyncClient(
        base_url=url.text,
        headers=headers,
        trust_env=False,  # a proxy of the environment would be another host
        follow_redirects=False,
        timeout=httpx.Timeout(read_timeout_s, connect=CONNECT_S, pool=None),
        # The load bounds its requests itself; a pool that queued some would make them wait unseen.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    )


async def ask(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    body: object = None,
    timeout_s: float = 30.0,
) -> Answer:
    """One request, its answer read whole.

    Args:
        client: from :func:`open_client`.
        method: ``GET`` or ``POST``.
        path: e.g. ``/v1/models``.
        body: sent as JSON where not ``None``.
        timeout_s: longest time for the whole answer, seconds.

    Raises:
        ServerError: unreachable, silent or dripping for too long, connection lost, a redirect, a packed answer, or one
            without end.
    """
    # vLLM refuses JSON that is not declared as such.
    headers = {} if body is None else {"content-type": "application/json"}
    content = None if body is None else msgspec.json.encode(body)
    timeout = httpx.Timeout(timeout_s, connect=CONNECT_S, pool=None)
    try:
        request = client.stream(method, path, content=content, headers=headers, timeout=timeout)
        response, read = await asyncio.wait_for(_whole(client, path, request), timeout_s + _GRACE_S)
    except httpx.HTTPError as error:
        raise ServerError(why(client, path, error)) from error
    except asyncio.TimeoutError:
        raise ServerError(
            f"{shown(client, path)}: the answer is not over after {timeout_s:.0f} s; look at the server's log"
        ) from None
    refuse_redirect(client, path, response)
    return Answer(response.status_code, read)


async def _whole(
    client: httpx.AsyncClient, path: str, request: AbstractAsyncContextManager[httpx.Response]
) -> tuple[httpx.Response, bytes]:
    async with request as response:
        return response, await read_body(client, path, response)


async def read_body(client: httpx.AsyncClient, path: str, response: httpx.Response) -> bytes:
    """An open answer's body.

    Args:
        client: of the server.
        path: that was asked for.
        response: a stream, not read yet.

    Raises:
        ServerError: packed, or without end.
    """
    refuse_packed(client, path, response)
    read = bytearray()
    async for part in response.aiter_raw():
        read += part
        if len(read) > _LONGEST_BODY:
            raise ServerError(f"{shown(client, path)}: the answer does not end; is this the server meant?")
    return bytes(read)


def refuse_packed(client: httpx.AsyncClient, path: str, response: httpx.Response) -> None:
    """Refuse an answer that is packed though none was asked to be.

    Raises:
        ServerError: it is.
    """
    packed = response.headers.get("content-encoding", "identity")[:_SHOWN]
    if packed.strip().lower() not in ("", "identity"):
        raise ServerError(
            f"{shown(client, path)}: the answer is packed ({packed}), which was not asked for; give the server's own "
            "address, not that of something in front of it"
        )


def refuse_redirect(client: httpx.AsyncClient, path: str, response: httpx.Response) -> None:
    """Say where a redirect would lead, and do not go there.

    Raises:
        ServerError: the answer is a redirect.
    """
    if 300 <= response.status_code < 400:
        where = response.headers.get("location", "nowhere")[:_SHOWN]
        raise ServerError(
            f"{shown(client, path)}: the server points to {where}, which is not followed; give that address itself"
        )


def why(client: httpx.AsyncClient, path: str, error: httpx.HTTPError) -> str:
    """What went wrong on the way to a server, and what to do, in one line."""
    at = shown(client, path)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        said = " ".join(str(error).split()) or "no answer"
        return f"{at}: cannot reach the server ({said}); is it running, and is --server right?"
    if isinstance(error, httpx.LocalProtocolError):  # its words repeat a header, and the key may be in it
        return f"{at}: the request cannot be sent; look at --server and the key"
    if isinstance(error, httpx.TimeoutException):
        return f"{at}: the server was silent for too long; look at its log"
    said = " ".join(str(error).split()) or type(error).__name__
    return f"{at}: the connection was lost ({said}); look at the server's log, it may have died"


def shown(client: httpx.AsyncClient, path: str) -> str:
    """An endpoint as messages name it."""
    return f"{str(client.base_url).rstrip('/')}{path}"


def message_of(body: bytes) -> str:
    """The message in a server's error answer: OpenAI's, FastAPI's or SGLang's form, else the text; one short line."""
    text: object = None
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        data = None
        text = body[: 4 * _SHOWN].decode(errors="replace")
    if isinstance(data, dict):
        error = data.get("error")
        text = error.get("message") if isinstance(error, dict) else error
        text = text or data.get("message") or data.get("detail") or text
    return " ".join(str(text or "").split())[:_SHOWN]
