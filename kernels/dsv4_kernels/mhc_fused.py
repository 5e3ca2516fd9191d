from __future__ import annotations

from typing import Any


def _no(*a: Any) -> Any:
    raise NotImplementedError
hc_head_fused = post_fused = pre_fused = _no
