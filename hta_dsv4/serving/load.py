"""What does the server decode while we measure? At most C streaming completions at once, timed chunk by chunk.

Prompts are random token ids of a given length, no two alike, so that neither a tokenizer's habits nor a prefix cache
changes the work; outputs have a fixed length (``ignore_eos``). A chunk of the stream is not a token: servers put
several tokens into one, so tokens are counted by the server's ``usage``.

``drive`` runs a load to its end; ``running`` keeps it running around what its caller does, and takes it back after.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from hta_dsv4.serving.running import COMPLETIONS, RunningLoad, Target, prompt_ids
from hta_dsv4.serving.timing import CANCELLED, Load, LoadResult, RequestTiming

__all__ = [
    "CANCELLED", "COMPLETIONS", "Load", "LoadResult", "RequestTiming", "RunningLoad", "Target", "drive", "prompt_ids",
    "running",
]  # fmt: skip


@asynccontextmanager
async def running(client: httpx.AsyncClient, target: Target, load: Load) -> AsyncIterator[RunningLoad]:
    """Keep a load running while the body does something; every request is ended at the close, however it comes.

    Args:
        client: from :func:`~hta_dsv4.serving.client.open_client`.
        target: what is asked.
        load: how much.

    Yields:
        The load under way; :meth:`RunningLoad.result` stays valid after the close.
    """
    under_way = RunningLoad(client, target, load)
    try:
        yield under_way
    finally:
        await under_way.cancel()


async def drive(client: httpx.AsyncClient, target: Target, load: Load) -> LoadResult:
    """Run a load to its end.

    Args:
        client: from :func:`~hta_dsv4.serving.client.open_client`.
        target: what is asked.
        load: how much.

    Returns:
        The times of every request, failed ones with their error; nothing is raised for those.
    """
    async with running(client, target, load) as under_way:
        return await under_way.finish()
