"""What does a stream of server-sent events say? Bytes -> the chunks of an OpenAI-compatible completion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from hta_dsv4.errors import HtaDsv4Error

_LONGEST_LINE = 4 << 20  # bytes; a chunk is a few hundred
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the server counts them."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None


class Choice(msgspec.Struct, frozen=True):
    """One completion of a chunk."""

    finish_reason: str | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One event of the stream.

    Attributes:
        choices: empty in the last chunk, which carries the usage alone.
        usage: tokens so far, where the server says them.
        error: what the server says went wrong midway, as sent; empty where nothing did.
    """

    choices: list[Choice] = []  # msgspec copies it
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


class Stream:
    """Cuts bytes as they arrive into events."""

    def __init__(self) -> None:
        self._rest = b""
        self.done = False
        """``[DONE]`` has arrived: the stream is whole."""

    def feed(self, data: bytes) -> Iterator[tuple[Chunk, bytes]]:
        """The events that are whole with these bytes: each decoded, and as sent.

        Lines end at line feeds alone: text in JSON may hold other characters that count as line ends elsewhere
        (U+2028, U+0085), which a server may send as they are.

        Raises:
            HtaDsv4Error: a line that is no JSON, or without end.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _LONGEST_LINE:
            raise HtaDsv4Error("the stream holds a line without end")
        for line in lines:
            field, _, value = line.partition(b":")
            value = value.strip()
            if field != b"data" or not value:
                continue  # comments, event names, blank lines between events
            if value == b"[DONE]":
                self.done = True
                continue
            try:
                yield _DECODER.decode(value), value
            except (msgspec.DecodeError, RecursionError) as error:
                raise HtaDsv4Error(
                    f"the stream holds an event that is no completion chunk ({error})"
                ) from error


_DECODER = msgspec.json.Decoder(Chunk)
