"""What a trace is, has and lacks, as grids."""

from __future__ import annotations

from hta_dsv4.analysis.info import Info
from hta_dsv4.present.grid import ABSENT, Grid, us


def info_grids(info: Info) -> tuple[Grid, ...]:
    """What a trace is, its GPUs, and what it has and lacks."""
    facts = [
        ("kernels", f"{info.kernels:,}"),
        ("copies / sets", f"{info.memcpys:,} / {info.memsets:,}"),
        ("sum us", _summed(info)),
        ("busy us", us(info.busy_ns)),
        ("span us", us(info.span_ns)),
        (
            "steps",
            f"{info.steps} by {info.step_method} ({info.step_detail})"
            if info.steps
            else f"none: {info.step_detail}",
        ),
        *(("", sentence) for sentence in info.step_agreement),
        *((("architecture" if i == 0 else ""), sentence) for i, sentence in enumerate(info.architecture)),
        (
            "ranks",
            ", ".join(info.ranks.values()) + ("" if info.rank_known else " (the file does not say its rank)"),
        ),
        ("versions", ", ".join(f"{k} {v}" for k, v in info.versions.items()) or "not in the file"),
    ]
    title = info.path + (" (PARTIAL: salvaged)" if info.partial else "")
    devices = [
        (
            str(d.rank),
            ABSENT if d.device is None else str(d.device),
            d.name or "unknown",
            ABSENT if d.num_sms is None else str(d.num_sms),
            f"{d.kernels:,}",
            us(d.kernel_sum_ns),
            us(d.sum_ns - d.kernel_sum_ns),
            us(d.busy_ns),
        )
        for d in info.devices
    ]
    has = [("yes" if c.present else "no", c.name, c.detail) for c in info.capabilities]
    headers = ("rank", "device", "name", "SMs", "kernels", "kernel sum us", "copies and sets", "busy us")
    gpus = (Grid("GPUs", headers, tuple(devices), left=3),) if devices else ()
    return (
        Grid(title, ("", ""), tuple(facts), left=2, prose=True),
        *gpus,
        Grid(
            "what the trace has", ("", "what", "detail"), tuple(has), notes=info.warnings, left=3, prose=True
        ),
    )


def _summed(info: Info) -> str:
    """Summed durations of all activities, as busy time is of all of them, and what they are of."""
    copies, early = info.sum_ns - info.kernel_sum_ns, info.sum_ns - info.own_ns
    parts = [f"kernels {us(info.kernel_sum_ns)}, copies and sets {us(copies)}"] if copies else []
    parts += [f"early {us(early)}"] if early else []
    return us(info.sum_ns) + (f" ({'; '.join(parts)})" if parts else "")
