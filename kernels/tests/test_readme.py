"""What the kernels' README tells a newcomer to type, typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_example_runs() -> None:
    """The README's first lines of Python -> the shapes and types that the page promises."""
    code = README.read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    assert (names["out"].shape, names["out"].dtype) == ((2, 1, 64, 512), torch.bfloat16)
    assert (names["lse"].shape, names["lse"].dtype) == ((2, 1, 64), torch.float32)
    assert bool(names["lse"].isfinite().all())
