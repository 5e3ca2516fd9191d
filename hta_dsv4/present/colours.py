"""One colour per bucket, used in every figure and report.

Fourteen colours cannot all be far apart, so these were searched for: among sRGB colours of moderate chroma, the set
with the largest smallest distance (OKLab) between any two, as seen with normal vision, protanopia, deuteranopia and
tritanopia. That distance is 0.10, about five times what is just noticeable (``tests/test_colours.py`` measures it).
They show on white and on near-black. Colour is never the only carrier: bars are labelled, hovers name the bucket,
``unknown`` is hatched.
"""

from __future__ import annotations

BUCKET_COLOURS: dict[str, str] = {
    "attention": "#4466cc",
    "fp32_simt_gemm": "#992200",
    "fp4_moe": "#00cc99",
    "glue": "#eeaa22",
    "indexer": "#dd7733",
    "dense_gemm": "#5588ee",
    "moe_other": "#99ee88",
    "mhc": "#664455",
    "kv_cache": "#aaaaff",
    "norm_act_quant": "#eeccee",
    "communication": "#bb5522",
    "memory": "#776688",
    "sampling": "#444499",
    "unknown": "#8c8c8c",
}
"""Bucket -> sRGB, in the order of the tables."""

HATCHED = frozenset({"unknown"})
"""Buckets drawn with a pattern as well: what is not known must not look like one more kind of work."""

MORE, NEUTRAL = "#c44e2a", "#8a8f98"
"""Slower, and everything that is neither slower nor faster."""

SEQUENTIAL = ((0.0, "#f4f6fa"), (0.02, "#dfe7f5"), (0.15, "#9db8e6"), (0.45, "#4a73c9"), (1.0, "#1d2f6f"))
"""Light to dark for shares on a light page; most cells are small, so the low end is stretched."""

SEQUENTIAL_DARK = (
    (0.0, "#1d2127"),
    (0.02, "#24304a"),
    (0.15, "#34508f"),
    (0.45, "#6f97ea"),
    (1.0, "#e2ebff"),
)
"""The same on a dark page: more is brighter."""


def colour(bucket: str) -> str:
    """The colour of a bucket; that of ``unknown`` for a bucket of a user's own.

    Args:
        bucket: its name.

    Returns:
        ``#rrggbb``.
    """
    return BUCKET_COLOURS.get(bucket, BUCKET_COLOURS["unknown"])


def luminance(rgb: str) -> float:
    """Relative luminance of ``#rrggbb`` (WCAG 2), 0 to 1."""
    channels = (int(rgb[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink(rgb: str) -> str:
    """Black or white, whichever reads better on a colour."""
    return "#ffffff" if 1.05 / (luminance(rgb) + 0.05) >= (luminance(rgb) + 0.05) / 0.05 else "#000000"
