"""Which engine serves here, and what does it serve? Asked of the server itself, without touching its profiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

import httpx

from hta_dsv4.serving.client import Answer, ServerError, ask, shown

VLLM, SGLANG = "vllm", "sglang"
ENGINES = (VLLM, SGLANG)
AUTO = "auto"
KEY_REMEDY = "give the server's key by --api-key or HTA_DSV4_API_KEY"

_RUNNING = {VLLM: "vllm:num_requests_running", SGLANG: "sglang:num_running_reqs"}


@dataclass(frozen=True, slots=True)
class Served:
    """What a server serves.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        model: the name requests must give.
        version: of the engine, where it says it.
        max_model_len: prompt and output together, tokens, where it says it.
        note: why the engine is believed to be this one, where the server does not say.
    """

    engine: str
    model: str
    version: str | None = None
    max_model_len: int | None = None
    note: str | None = None


async def detect(client: httpx.AsyncClient, wanted: str = AUTO) -> Served:
    """Ask a server what it is.

    Args:
        client: of the server.
        wanted: the engine the user named, or ``auto``.

    Raises:
        ServerError: unreachable, no OpenAI-compatible server, no model, an engine we do not know, or not the one named.
    """
    at = shown(client, "/v1/models")
    answer = await ask(client, "GET", "/v1/models")
    refuse_without_key(at, answer)
    if answer.status == 503:
        raise ServerError(f"{at}: the server is not ready yet ({answer.message or 503}); wait until it is")
    listing = answer.json()
    models = listing.get("data") if isinstance(listing, dict) else None
    if answer.status != 200 or not isinstance(models, list):
        said = f" ({answer.message})" if answer.status >= 400 and answer.message else ""
        raise ServerError(
            f"{at}: answered {answer.status}{said} and no list of models; --server wants an OpenAI-compatible server"
        )
    if not models or not isinstance(models[0], dict) or not isinstance(models[0].get("id"), str):
        raise ServerError(f"{at}: the server serves no model; start it with one")
    first = models[0]
    length = first.get("max_model_len")
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        length = None  # not said, or nothing that is a length
    owner = str(first.get("owned_by", "")).lower()
    version = await _version(client)
    engine = next((e for e in ENGINES if e in owner), None)
    note = None
    if engine is None and version is not None and wanted == AUTO:
        engine, note = (
            VLLM,
            f"/v1/models says {owner or 'nothing'} of its owner; /version answers as vLLM's does",
        )
    if engine is not None and wanted not in (AUTO, engine):
        raise ServerError(
            f"--engine {wanted}: {at} says the engine is {engine}; leave --engine out or name that"
        )
    if engine is None and wanted == AUTO:
        raise ServerError(
            f"{at}: the engine is neither vLLM nor SGLang (owner {owner or 'not said'}); where it is one of them "
            "behind another name, say --engine vllm or --engine sglang"
        )
    if engine is None:
        engine, note = (
            wanted,
            f"/v1/models says {owner or 'nothing'} of its owner; taken for {wanted} as named",
        )
    return Served(engine, first["id"], version, length, note)


async def _version(client: httpx.AsyncClient) -> str | None:
    """What vLLM's ``/version`` says; others have no such endpoint."""
    answer = await ask(client, "GET", "/version")
    data = answer.json() if answer.status == 200 else None
    version = data.get("version") if isinstance(data, dict) else None
    return version[:40] if isinstance(version, str) and version.isprintable() else None


def refuse_without_key(at: str, answer: Answer) -> None:
    """Say that a key is needed.

    Raises:
        ServerError: the answer is 401 or 403.
    """
    if answer.status in (401, 403):
        raise ServerError(f"{at}: the server refuses the request ({answer.status}); {KEY_REMEDY}")


async def running_requests(client: httpx.AsyncClient, engine: str) -> int | None:
    """How many requests the server's scheduler runs now, all ranks together, by ``/metrics``.

    Returns:
        ``None`` where it has no such metric (SGLang needs ``--enable-metrics``).

    Raises:
        ServerError: the server is gone.
    """
    answer = await ask(client, "GET", "/metrics")
    if answer.status != 200:
        return None
    name = re.escape(_RUNNING[engine].encode())
    values = re.findall(rb"^" + name + rb"(?:\{[^\n]*\})? +([0-9.eE+-]+)", answer.body, re.MULTILINE)
    try:
        return round(sum(float(v) for v in values)) if values else None
    except (ValueError, OverflowError):
        return None


async def alive(client: httpx.AsyncClient) -> bool:
    """The server still answers."""
    try:
        # not /health: SGLang's generates a token, which a running batch would see
        await ask(client, "GET", "/v1/models", timeout_s=10)
    except ServerError:
        return False
    return True
