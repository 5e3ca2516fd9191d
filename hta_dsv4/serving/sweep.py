"""How does a live server's throughput grow with concurrency? Waves of C streaming requests, no profiler, repeats apart.

A repeat at C is one load: C places with one request each, or ``waves`` of them in turn. What is measured in it is said
in :mod:`hta_dsv4.analysis.throughput`: only while all C decode. Rounds go over all values of C, up and down in turn. A
wave at each C goes before and is dropped: servers compile or capture graphs at a batch size they have not seen.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import httpx

from hta_dsv4.analysis.sweep import Fact, Repeat, Request, Sweep
from hta_dsv4.analysis.sweep_plan import SweepStoppedError, rounds
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.serving.client import ServerError, ServerUrl, open_client
from hta_dsv4.serving.engine_clock import decode_time, late
from hta_dsv4.serving.engines import AUTO, Served, alive, detect, running_requests
from hta_dsv4.serving.interrupts import Interrupts, run_interruptibly
from hta_dsv4.serving.load import Load, LoadResult, RequestTiming, Target, drive

LEAST_STEPS = 8
"""All C must decode together for at least this many tokens each: one chunk more or less must not matter."""
_WARM_TOKENS = 32
_SEEDS = 1 << 40

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServerSweep:
    """What is asked of a server.

    Attributes:
        url: the server, as the user gives it.
        key: its API key; never printed or kept.
        concurrency: values of C, increasing.
        repeats: measurements at each.
        prompt_tokens, output_tokens: of each request.
        waves: requests at each place in a repeat.
        warmup: dropped waves before a value's first repeat.
        label: the variant's name; by default the model's.
        model: its name, where the server has several.
        engine: ``auto``, ``vllm`` or ``sglang``.
        read_timeout_s: longest silence of a stream, seconds.
    """

    url: str
    key: str | None = None
    concurrency: tuple[int, ...] = (1, 4, 16, 32)
    repeats: int = 3
    prompt_tokens: int = 1024
    output_tokens: int = 256
    waves: int = 1
    warmup: int = 1
    label: str | None = None
    model: str | None = None
    engine: str = AUTO
    read_timeout_s: float = 120.0


def run_server_sweep(options: ServerSweep, say: Say | None = None) -> Sweep:
    """Measure.

    Args:
        options: what.
        say: told what happens, one short line each.

    Returns:
        Every repeat, failed ones with what failed.

    Raises:
        HtaDsv4Error: an option is wrong, the server cannot be reached or refuses every request.
        SweepStoppedError: Ctrl-C, it went away, or every request failed; carries the repeats made until then.
            No request is left running.
    """
    url = ServerUrl.parse(options.url, options.key)
    if options.output_tokens < LEAST_STEPS + 1:
        raise HtaDsv4Error(
            f"--output-tokens {options.output_tokens}: too short to see all requests decode; at least {LEAST_STEPS + 1}"
        )
    made = datetime.now(timezone.utc).isoformat(timespec="seconds")
    seed = secrets.randbelow(_SEEDS)  # a server that kept an earlier sweep's prompts must not know these
    repeats: list[Repeat] = []
    notes: list[str] = []
    served: list[Served] = []

    def so_far() -> Sweep:
        about: dict[str, Fact] = {"engine": served[0].engine, "model": options.model or served[0].model}
        if served[0].version:
            about["version"] = served[0].version
        about |= {
            "prompt_tokens": options.prompt_tokens, "output_tokens": options.output_tokens, "waves": options.waves,
            "warmup": options.warmup, "seed": seed,
        }  # fmt: skip
        said = tuple(dict.fromkeys(notes))
        return Sweep(options.label or str(about["model"]), "server", tuple(repeats), made, about, said)

    say = say or (lambda _line: None)
    interrupts = Interrupts()
    try:
        work = _measure(options, url, seed, served, repeats, notes, say)
        run_interruptibly(work, interrupts, say, "the requests")
        if interrupts.count:
            raise KeyboardInterrupt
    except (KeyboardInterrupt, ServerError) as error:
        if not repeats:
            raise
        planned = len(options.concurrency) * options.repeats
        notes.append(f"stopped after {len(repeats)} of {planned} measurements: {str(error) or 'interrupted'}")
        raise SweepStoppedError(so_far(), error) from error
    if all(r.failures and not r.requests for r in repeats):
        first = repeats[0].failures[0]
        raise SweepStoppedError(so_far(), ServerError(f"every request of every measurement failed: {first}"))
    return so_far()


async def _measure(
    options: ServerSweep,
    url: ServerUrl,
    seed: int,
    served: list[Served],
    repeats: list[Repeat],
    notes: list[str],
    say: Say,
) -> None:
    async with open_client(url, options.read_timeout_s) as client:
        found = await detect(client, options.engine)
        served.append(found)
        longest = options.prompt_tokens + options.output_tokens
        if found.max_model_len is not None and longest > found.max_model_len:
            raise HtaDsv4Error(
                f"{url.text}: admits {found.max_model_len} tokens a request; --prompt-tokens and --output-tokens "
                f"add up to {longest}"
            )
        others = await running_requests(client, found.engine)
        if others:
            notes.append(
                f"{others} requests of others ran as the sweep began: the figures are not the server's alone"
            )
        target = Target(options.model or found.model, read_timeout_s=options.read_timeout_s)
        warm: set[int] = set()
        for i, (repeat, c) in enumerate(rounds(options.concurrency, options.repeats)):
            if c not in warm:
                warm.add(c)
                await _warm_up(client, target, options, c, seed, say)
            say(f"C={c}, repeat {repeat} of {options.repeats}")
            load = Load(
                c, options.prompt_tokens, options.output_tokens, c * options.waves, seed + (i + 1) * _SEEDS
            )
            before = await decode_time(client, found.engine)
            result = await drive(client, target, load)
            after = None
            if before is not None and result.completed:
                after = await decode_time(client, found.engine, before.requests + len(result.completed))
            repeats.append(repeat_of(result, repeat, notes, late(result, before, after)))
            if not result.completed and not await alive(client):
                raise ServerError(f"{url.text}: the server no longer answers; look at its log")


async def _warm_up(
    client: httpx.AsyncClient, target: Target, options: ServerSweep, c: int, seed: int, say: Say
) -> None:
    """Dropped waves; a server that refuses all of one refuses the sweep."""
    for wave in range(options.warmup):
        say(f"C={c}, warm-up")
        tokens = min(_WARM_TOKENS, options.output_tokens)
        load = Load(c, options.prompt_tokens, tokens, c, seed - (c * options.warmup + wave + 1) * _SEEDS)
        result = await drive(client, target, load)
        if result.failed and not result.completed:
            raise ServerError(f"C={c}: every request failed: {result.failed[0].error}")


def repeat_of(result: LoadResult, repeat: int, notes: list[str] | None = None, too_late: str = "") -> Repeat:
    """What one load says.

    Args:
        result: of a load run to its end.
        repeat: its number, from 1.
        notes: takes what a reader must know of how tokens were counted.
        too_late: why the streams do not show when tokens were made, if they do not.

    Returns:
        The measurement; without a throughput, and with the reason, where a request failed, where the server counts no
        tokens, where they came late, or where the requests were not all decoding together for :data:`LEAST_STEPS`
        tokens.
    """
    c = result.load.concurrency
    requests = tuple(_request(t) for t in result.completed)
    failures = tuple(str(t.error) for t in result.failed)
    windows = result.decoding_windows()
    length = sum(end - begin for begin, end in windows)
    rate, why = None, ""
    if failures or len(requests) < result.load.requests:
        unsent = f", {result.unsent} were not sent" if result.unsent else ""
        why = f"{len(failures)} of {result.load.requests} requests failed{unsent}, so the batch was not full"
    elif not all(t.completion_tokens for t in result.completed):
        why = "the server gives no usage, and chunks are not tokens"
    elif too_late:
        why = too_late
    elif not windows:
        why = (
            f"the {c} requests never decoded all at once; the server may run fewer together (vLLM --max-num-seqs, "
            "SGLang --max-running-requests), or --output-tokens is too short"
        )
    else:
        rates = [(end - begin, _rate(result.completed, begin, end, c)) for begin, end in windows]
        whole = [(ns, r) for ns, r in rates if r is not None and r * ns / 1e9 >= LEAST_STEPS * c]
        length = sum(ns for ns, _ in whole)
        if whole:
            rate = sum(ns * r for ns, r in whole) / length
        else:
            why = f"all {c} decoded together for fewer than {LEAST_STEPS} tokens each; raise --output-tokens"
    if notes is not None:
        _say_counting(result, notes)
    return Repeat(c, repeat, length if rate else 0, rate, requests, failures, (), why)


def _request(t: RequestTiming) -> Request:
    told = _told(t)
    ttft = None if t.t_first_ns is None else t.t_first_ns - t.t_submit_ns
    tpot = None
    if len(told) > 1 and told[-1][1] > told[0][1]:
        tpot = round((told[-1][0] - told[0][0]) / (told[-1][1] - told[0][1]))
    return Request(t.completion_tokens or 0, ttft, tpot)


def _told(t: RequestTiming) -> list[tuple[int, float]]:
    """(time, tokens so far) of each chunk; ``usage`` spread evenly over the chunks where they carry no count."""
    pairs = list(zip(t.chunk_ns, t.chunk_tokens, strict=True))
    told = [(at, float(n)) for at, n in pairs if n is not None]
    if len(told) == len(pairs) or not t.completion_tokens:
        return told
    return [(at, t.completion_tokens * (i + 1) / len(pairs)) for i, (at, _) in enumerate(pairs)]


def _rate(timings: Sequence[RequestTiming], begin: int, end: int, c: int) -> float | None:
    """Tokens per second of all C while they decode: each request's own rate between its outputs inside, added."""
    rates = []
    for t in timings:
        inside = [(at, n) for at, n in _told(t) if begin <= at <= end]
        if len(inside) > 1 and inside[-1][0] > inside[0][0] and inside[-1][1] > inside[0][1]:
            rates.append((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) * 1e9)
    return sum(rates) if len(rates) == c else None


def _say_counting(result: LoadResult, notes: list[str]) -> None:
    done = result.completed
    if any(None in t.chunk_tokens for t in done if t.completion_tokens):
        notes.append(
            "the server counts tokens at the end of a request only: they are spread evenly over its chunks"
        )
    short = [t for t in done if t.completion_tokens and t.completion_tokens < result.load.output_tokens]
    if short:
        notes.append(
            f"some outputs were shorter than the {result.load.output_tokens} tokens asked for (ignore_eos unheeded?)"
        )
