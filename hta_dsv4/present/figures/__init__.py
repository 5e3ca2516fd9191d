"""Figures (Plotly), one function each; all take ``theme="light"`` or ``"dark"`` and return a ``Figure``.

``figure.show()`` draws in a notebook or browser; ``figure.write_image("x.svg")`` writes PNG, SVG or PDF (this needs
``pip install kaleido`` and a Chrome or Chromium).
"""

from __future__ import annotations

from hta_dsv4.present.figures.change import waterfall
from hta_dsv4.present.figures.coverage import coverage
from hta_dsv4.present.figures.cross import heatmap
from hta_dsv4.present.figures.kernel_speed import kernel_speed
from hta_dsv4.present.figures.scaling import scaling
from hta_dsv4.present.figures.shares import share_bars, time_bars
from hta_dsv4.present.figures.throughput import throughput
from hta_dsv4.present.figures.timeline import steps_together, timeline

__all__ = [
    "coverage", "heatmap", "kernel_speed", "scaling", "share_bars", "steps_together", "throughput",
    "time_bars", "timeline", "waterfall",
]  # fmt: skip
