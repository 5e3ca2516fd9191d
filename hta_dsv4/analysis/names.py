"""Which kernel of one variant is which kernel of another: matching names that changed in spelling, not in meaning.

Names are compared as written first, then with less and less of what toolchains put into a name and that does not say
what the kernel computes:

1. ``exact``: the name as written;
2. ``suffix``: without generated endings: Triton's running number (``triton_poi_fused_mul_3``), its specialisation
   signature (``_0d1d2de``), autotune and cache hashes, clone suffixes;
3. ``tiling``: tile shapes, pipeline stages, alignments and other bare numbers masked
   (``sgemm_64x128_8x5_align1`` -> ``sgemm_*_*_align*``);
4. ``function``: template arguments and parameters dropped, where the function's own name still says what it does. The
   carriers of PyTorch and CUTLASS (``elementwise_kernel<...>``, ``device_kernel<...>``) say nothing without their
   arguments and are never matched this way.

Each level looks only at what the levels above left over, on both sides, within one role: an attention kernel is never
matched with a copy. Several kernels with one key on a side are merged (n:m).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from hta_dsv4.classify.names import MAX_CHARS, normalise

EXACT, SUFFIX, TILING, FUNCTION = "exact", "suffix", "tiling", "function"
CONFIDENCE: dict[str, float] = {EXACT: 1.0, SUFFIX: 0.95, TILING: 0.8, FUNCTION: 0.6}
"""Method -> how sure the match is, 0..1: a judgement, ordered by how much of the name was ignored."""

_CLONE = re.compile(r"\s*\[clone [^\]]*\]|\.kd$|\.(?:isra|constprop|part|cold)\.?\d*")
_HASH = re.compile(r"_[0-9a-f]*(?:[0-9][a-f]|[a-f][0-9])[0-9a-f]*$")
_MIN_HASH = 6
# 0d1d2de3: argument numbers, each with d (divisible by 16), e, c, i or nothing
_SIGNATURE = re.compile(r"_0[dceir]*(?:\d[dceir]*){2,}$")
# Only identifiers end in a running number: behind a bracket it would be an argument of the kernel.
_RUNNING = re.compile(r"^(?P<stem>[A-Za-z_]\w*?[A-Za-z])_(?P<number>\d{1,4})$")
_TRITON = re.compile(r"^triton_(?:poi|red|per|tem|for|mm|bmm|spl|cat)_")
_WORD_TILE = (
    r"(?:tile(?:size)?|stages?|warpsize|warps?|align[abc]?|cluster|splits?|unroll|vec|block|bm|bn|bk)"
)
_NUMBER = re.compile(
    rf"(?<![A-Za-z0-9])(?P<word>{_WORD_TILE})?\d+(?:x\d+)*[uUlL]{{0,3}}(?![A-Za-z0-9])", re.IGNORECASE
)
# Function words that are no evidence of what a kernel computes.
_EMPTY_WORDS = frozenset({
    "kernel", "kernels", "elementwise", "unrolled", "vectorized", "legacy", "device", "impl", "main", "entry",
    "cutlass", "reduce", "fused", "gemm", "gemv", "nocast", "void", "cat", "batched", "copy", "scatter", "gather",
    "index", "indexed", "universal", "template", "default", "generic", "persistent", "dispatch",
})  # fmt: skip


@lru_cache(maxsize=65536)
def suffix_key(name: str) -> str:
    """The name without generated endings.

    Args:
        name: a kernel's name.

    Returns:
        E.g. ``triton_poi_fused_mul`` for ``triton_poi_fused_mul_3``, ``_attn_kernel`` for ``_attn_kernel_0d1d2de``.
    """
    text = _CLONE.sub("", name[:MAX_CHARS]).strip()
    text = _SIGNATURE.sub("", text)
    if (found := _HASH.search(text)) and len(found.group()) > _MIN_HASH:
        text = text[: found.start()]
    # A running number is certain for Inductor's names; elsewhere `_4` may be a variant (`_v_2`), so one digit group
    # is dropped only behind a word of at least two letters.
    running = _RUNNING.match(text)
    if running and (_TRITON.match(text) or re.search(r"[A-Za-z]{2,}$", running["stem"])):
        text = running["stem"]
    return text


@lru_cache(maxsize=65536)
def tiling_key(name: str) -> str:
    """The name with tile shapes, stages, alignments and bare numbers masked by ``*``.

    Args:
        name: a kernel's name.

    Returns:
        E.g. ``cutlass_*_simt_sgemm_*_*_tn_align*``. Numbers inside a word (``fp8``, ``sm90``, ``bf16``) stay.
    """
    # Underscores bind in \w, so a run like 64x128_8x5 is separated first.
    return _NUMBER.sub(lambda m: (m["word"] or "") + "*", suffix_key(name))


@lru_cache(maxsize=65536)
def function_key(name: str) -> str | None:
    """The kernel's function without template arguments and parameters.

    Args:
        name: a kernel's name.

    Returns:
        Its words with the namespaces before it, or ``None`` where they say nothing by themselves
        (``elementwise_kernel``).
    """
    found = normalise(suffix_key(name))
    telling = [
        w
        for w in found.function.strip("_").split("_")
        if w not in _EMPTY_WORDS and not w.isdigit() and len(w) > 1
    ]
    return found.path if telling else None


@dataclass(frozen=True, slots=True)
class Match:
    """One kernel, in two variants.

    Attributes:
        name: how the pair is shown: the other's name, or ``a (+n more)`` for a merged one.
        base, other: the names on each side, sorted; empty on the side that lacks it.
        method: exact | suffix | tiling | function; ``""`` for a kernel that only one side has.
        confidence: 0..1 (:data:`CONFIDENCE`); 1 for what only one side has, as far as names can tell.
    """

    name: str
    base: tuple[str, ...]
    other: tuple[str, ...]
    method: str
    confidence: float

    @property
    def matched(self) -> bool:
        """Whether both sides have it."""
        return bool(self.base and self.other)


def match_names(base: Iterable[tuple[str, Hashable]], other: Iterable[tuple[str, Hashable]]) -> list[Match]:
    """Match the kernels of two variants.

    Args:
        base: ``(name, group)`` of each distinct kernel; only kernels of one group (its role) are matched by anything
            but their exact name.
        other: the same of the other variant.

    Returns:
        Every name of both sides in exactly one entry: matches first, then what only the base has, then what only the
        other has; sorted by name within each.
    """
    left, right = dict(base), dict(other)
    found: list[Match] = []
    for name in sorted(left.keys() & right.keys()):
        found.append(Match(name, (name,), (name,), EXACT, CONFIDENCE[EXACT]))
        del left[name], right[name]
    levels: list[tuple[str, Callable[[str], str | None]]] = [
        (SUFFIX, suffix_key), (TILING, tiling_key), (FUNCTION, function_key),
    ]  # fmt: skip
    for method, key_of in levels:
        mine, theirs = _by_key(left, key_of), _by_key(right, key_of)
        for key in sorted(mine.keys() & theirs.keys(), key=str):
            a, b = tuple(sorted(mine[key])), tuple(sorted(theirs[key]))
            shown = b[0] if len(b) == 1 else f"{b[0]} (+{len(b) - 1} more)"
            found.append(Match(shown, a, b, method, CONFIDENCE[method]))
            for name in a:
                del left[name]
            for name in b:
                del right[name]
    found += [Match(n, (n,), (), "", 1.0) for n in sorted(left)]
    found += [Match(n, (), (n,), "", 1.0) for n in sorted(right)]
    return found


def _by_key(
    names: dict[str, Hashable], key_of: Callable[[str], str | None]
) -> dict[tuple[str, Hashable], list[str]]:
    out: dict[tuple[str, Hashable], list[str]] = {}
    for name, group in names.items():
        key = key_of(name)
        if key is not None:
            out.setdefault((key, group), []).append(name)
    return out
