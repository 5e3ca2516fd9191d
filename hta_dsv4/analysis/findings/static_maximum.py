"""Cost that follows the longest context a server admits, not the tokens its requests have.

It shows twice in one capture. The indexer's op shapes hold the static width (``max_context / 4``, or its pages of
64), so most of what they score is padding; attention over the compressed list of c128 layers (``max_context / 128``)
takes as long as its padded columns would, though its requests have few tokens there. With captures at several maxima
(a sweep) the growth itself is measured.
"""

from __future__ import annotations

import numpy as np

from hta_dsv4.analysis.costs.cost import UNKNOWN
from hta_dsv4.analysis.costs.geometry import HEAD_DIM
from hta_dsv4.analysis.costs.shapes import shapes_of
from hta_dsv4.analysis.findings.finding import (
    ATTACK,
    INFERRED,
    MEASURED,
    MODELLED,
    Claim,
    Evidence,
    Finding,
    Floats,
    Ints,
    claim,
    percent,
    said,
    together,
)
from hta_dsv4.analysis.findings.subject import Subject

RULE = "static_maximum"
PAGE = 64
"""Index entries of a page."""
_NEARLY_FULL = 0.5  # where requests use half of the maximum, its padding is not the finding
_LEAST_WIDTH = 8192  # a width guessed from shapes alone must be wider than what layers of the model have
_MOSTLY = 0.5  # and the shapes that hold it must own this part of the indexer's time
_AGREES = 0.25  # columns by time against columns by the static maximum


def static_maximum(s: Subject) -> list[Finding]:
    """At most one finding: one cause, one sweep to check it, one cap that removes it."""
    width = s.workload.index_width or _guess(s)
    guessed = s.workload.index_width is None
    real = s.workload.index_length
    parts: list[Claim] = []
    words: list[str] = []
    evidence: list[Evidence] = []
    if width is not None and (real is None or real <= _NEARLY_FULL * width):
        _index_part(s, width, real, parts, words, evidence)
        _attention_part(s, parts, words, evidence)
    if width is None:
        _fallback_part(s, parts, words, evidence)
    _sweep_part(s, parts, words, evidence)
    if not parts:
        return []
    rows = np.concatenate([p.rows for p in parts])
    maximum = s.workload.max_context or (4 * width if width is not None else None)
    total = float(s.dur[rows].sum()) / s.steps
    given = [] if maximum is None else [
        Evidence("static maximum context", maximum, "tokens", INFERRED if guessed else MEASURED)
    ]  # fmt: skip
    if s.workload.context is not None:
        given.append(Evidence("context of a request, on average", s.workload.context, "tokens"))
        requests = f"not the {s.workload.context:,.0f} of a request"
    else:
        requests = "whatever its requests have"
    cap = "" if maximum is None or maximum <= 8192 else (
        f": at 8,192 about {said(total * 8192 / maximum)} of it would be left"
    )  # fmt: skip
    confidence, because = _confidence(s, guessed, width)
    return [
        Finding(
            RULE, ATTACK,
            f"{percent(total, s.own_ns)} of the GPU time follows the static maximum "
            + ("context" if maximum is None else f"of {maximum:,} tokens") + f", {requests}: " + ", ".join(words),
            (Evidence("time concerned", total, "ns"), *given, *evidence), **s.about(rows), **s.saved(together(parts)),
            label=INFERRED if real is None or guessed else MODELLED, confidence=confidence, because=because,
            check="sweep it: capture at two smaller maxima, the same requests, then hta-dsv4 scaling A B C --param "
            "max_context; what should not grow is flagged",
            action="stop at each request's real length: score and select only real index entries, loop over valid "
            "columns only. Until then cap the server's maximum context" + cap,
            stop="when neither grows with the maximum any more (power below 0.1 in the sweep), or both are under 2 % "
            "of the step",
            needs="" if s.sweep is not None else _needs(s, guessed),
        )
    ]  # fmt: skip


def _index_part(
    s: Subject, width: int, real: float | None, parts: list[Claim], words: list[str], evidence: list[Evidence]
) -> None:
    rows = _padded_index(s, width)
    if not len(rows):
        return
    parts.append(_index_claim(s, rows, None if real is None else real / width))
    time = float(s.dur[rows].sum()) / s.steps
    words.append(
        f"{'indexer' if (s.origin[rows] == 'indexer').all() else 'launches of its width'} {said(time)}"
    )
    evidence += [
        Evidence("time in launches whose shapes hold the static width", time, "ns"),
        Evidence("such launches per step", len(rows) / s.steps, "launches"),
        Evidence("width of their index rows", width, "columns"),
    ]
    if real is not None:
        evidence += [
            Evidence("real entries of a row", real, "columns"),
            Evidence("of what they compute is padding", 100 * (1 - real / width), "%", MODELLED),
        ]


def _attention_part(s: Subject, parts: list[Claim], words: list[str], evidence: list[Evidence]) -> None:
    rows, columns = _padded_attention(s)
    if not len(rows):
        return
    parts.append(_attention_claim(s, rows, columns))
    time = float(s.dur[rows].sum()) / s.steps
    words.append(f"attention {said(time)}")
    evidence += [
        Evidence("time in attention launches over the padded list", time, "ns"),
        Evidence("such launches per step", len(rows) / s.steps, "launches"),
        Evidence("columns they walk, by their time against launches that walk no padding",
                 float(np.median(columns)), "columns", INFERRED),
        Evidence("columns that the static maximum sets", s.workload.c128_width or 0, "columns", MODELLED),
    ]  # fmt: skip


def _fallback_part(s: Subject, parts: list[Claim], words: list[str], evidence: list[Evidence]) -> None:
    """No shapes, but an FP32 product that the indexer asked for: its torch fallback, which scores the static width."""
    product = (s.bucket == "fp32_simt_gemm") & (s.origin == "indexer") & (s.shapes == "")
    if not product.any():
        return
    rows = np.flatnonzero(s.origin == "indexer")
    parts.append(_index_claim(s, rows, None))
    time = float(s.dur[rows].sum()) / s.steps
    words.append(f"indexer {said(time)}")
    evidence += [
        Evidence("time in FP32 products of the indexer", float(s.dur[product].sum()) / s.steps, "ns"),
        Evidence("such products per step, one in each c4 layer", int(product.sum()) / s.steps, "launches"),
        Evidence("time of all that the indexer asked for", time, "ns", INFERRED),
    ]


def _sweep_part(s: Subject, parts: list[Claim], words: list[str], evidence: list[Evidence]) -> None:
    """What a sweep measured: growth of origins that shapes do not show, and of those that they do."""
    if s.sweep is None:
        return
    taken = np.concatenate([p.rows for p in parts]) if parts else np.zeros(0, dtype=np.int64)
    for fit in s.sweep.flagged:
        evidence.append(
            Evidence(f"{fit.name}: growth from {fit.x[0]:,.0f} to {fit.x[-1]:,.0f}", fit.growing_ns, "ns")
        )
        if fit.power is not None:
            evidence.append(Evidence(f"{fit.name}: power of its time over the maximum", fit.power, ""))
        rows = np.flatnonzero(s.origin == fit.name)
        if not len(rows) or np.isin(rows, taken).any():
            continue
        dur = s.dur[rows]
        still = dur * (1 - fit.growing_ns / fit.mean_ns[-1])
        parts.append(claim(rows, dur, still, still, still))
        words.append(f"{fit.name} {said(float(dur.sum()) / s.steps)} (by the sweep)")


def _guess(s: Subject) -> int | None:
    """The widest dimension that owns most of the indexer's time, where no manifest says the maximum."""
    mine = s.origin == "indexer"
    time: dict[int, float] = {}
    texts, code = np.unique(s.shapes[mine], return_inverse=True)
    by_text = np.bincount(code, weights=s.dur[mine], minlength=len(texts)) if len(texts) else np.zeros(0)
    for text, ns in zip(texts, by_text, strict=True):
        for d in {d for shape in shapes_of(str(text)) for d in shape if d >= _LEAST_WIDTH and d % PAGE == 0}:
            time[d] = time.get(d, 0.0) + float(ns)
    total = float(by_text.sum())
    # of widths with nearly the same time the larger one: a row of pages also holds their sizes
    good = [d for d, ns in time.items() if ns >= _MOSTLY * total > 0]
    return max(good, default=None)


def _padded_index(s: Subject, width: int) -> Ints:
    """Launches of the indexer whose operands, or whose grid of gathered pages, are as wide as the static index."""
    pages, batch = width // PAGE, s.workload.batch
    known = s.origin != "unknown"
    wide = {}
    for text in np.unique(s.shapes):
        shapes = shapes_of(str(text))
        named = any(width in shape for shape in shapes)
        paged = any(
            len(shape) == 3 and shape[1] == pages and shape[2] % PAGE == 0 and batch in (None, shape[0])
            for shape in shapes
        )
        wide[text] = (named, named or paged)
    exact, either = (np.array([wide[t][i] for t in s.shapes], dtype=bool) for i in (0, 1))
    mine = (s.origin == "indexer") & either
    # Without origins only a width that no layer of the model has may speak.
    mine = mine | (~known & exact & (width > _LEAST_WIDTH))
    if batch is not None:
        grid = s.part.activities["grid_x"].to_numpy(dtype=np.float64, na_value=0)
        gathers = (s.origin == "indexer") & (s.role == "index_gather")
        mine = mine | gathers & (grid >= batch * pages) & (grid % (batch * pages) == 0)
    return np.flatnonzero(mine)


def _index_claim(s: Subject, rows: Ints, ratio: float | None) -> Claim:
    dur = s.dur[rows]
    if ratio is None:
        # Either the requests are as long as the maximum, and nothing is saved, or short against it, and nearly all is.
        after = np.minimum(dur, s.small_ns)
        return claim(rows, dur, dur, after, after)
    likely = dur * ratio + s.small_ns
    return claim(rows, dur, 2 * likely, likely, np.maximum(dur * ratio, s.floors.launch_ns))


def _padded_attention(s: Subject) -> tuple[Ints, Floats]:
    """Attention launches that take longer than others with more valid tokens, as long as their padded columns would.

    Returns:
        Their rows, and the columns that each walks, by its time.
    """
    none = np.zeros(0, dtype=np.int64)
    w = s.workload
    if w.geometry is None or not w.batch or not w.c128_width:
        return none, np.zeros(0)
    rows = np.flatnonzero((s.role == "attention_core") & (s.floors.known != UNKNOWN))
    per_column = 4.0 * HEAD_DIM * w.geometry.heads * w.batch
    tokens = s.floors.of("flops")[rows] / per_column
    walked = s.floors.of("issued")[rows] / per_column
    most = tokens.max(initial=0.0)
    full = tokens >= 0.95 * most
    if not full.any() or full.all():
        return none, np.zeros(0)
    reference = float(np.median(s.dur[rows][full]))
    columns_full = float(np.nanmedian(walked[full])) if not np.isnan(walked[full]).all() else float(most)
    columns = s.dur[rows] / reference * columns_full
    expected = float(w.c128_width) + np.where(tokens > w.window, w.window, 0.0)
    padded = ~full & (s.dur[rows] > 1.5 * reference) & (abs(columns / expected - 1) < _AGREES)
    return rows[padded], columns[padded]


def _attention_claim(s: Subject, rows: Ints, columns: Floats) -> Claim:
    dur = s.dur[rows]
    assert s.workload.geometry is not None
    assert s.workload.batch is not None
    tokens = s.floors.of("flops")[rows] / (4.0 * HEAD_DIM * s.workload.geometry.heads * s.workload.batch)
    likely = dur * tokens / columns + s.small_ns
    best = np.maximum(dur * tokens / columns, np.nan_to_num(s.floors.floor[rows]))
    return claim(rows, dur, 2 * likely, likely, best)


def _confidence(s: Subject, guessed: bool, width: int | None) -> tuple[float, str]:
    if s.sweep is not None and s.sweep.flagged:
        return 0.98, "a sweep over the maximum measures the growth, on the same GPU with the same requests"
    if width is None:
        return 0.5, (
            "an FP32 product of the indexer is its torch fallback, which scores all of the static width; how wide it "
            "is, and how long the requests are, nothing says"
        )
    if s.workload.index_length is None:
        return (
            0.5,
            "the shapes hold a wide static row, but nothing says how long the requests are: all or nothing",
        )
    if guessed:
        return 0.8, "the width is in the shapes; that it is a static maximum is a guess from its size"
    return 0.95, (
        "the indexer's shapes hold the static width, and the capture says how long the requests are; attention counts "
        f"only where it takes as long as its padded columns would, to within {100 * _AGREES:.0f} %"
    )


def _needs(s: Subject, guessed: bool) -> str:
    if s.workload.context is None:
        return "the requests' context: --context TOKENS, or a manifest beside the trace"
    more = "the server's maximum: --max-context TOKENS; " if guessed else ""
    return f"{more}captures at other maxima (give them together: findings A B C)"
