"""What grows with the maximum context a server admits, and should not.

python examples/06_what_grows.py
"""

from __future__ import annotations

import hta_dsv4

POINTS = {8_192: "split_k_8k", 65_536: "split_k_64k"}


def main() -> None:
    shipped = hta_dsv4.traces()
    found = hta_dsv4.scaling([(x, hta_dsv4.load(shipped[name])) for x, name in POINTS.items()], "max_context")
    for fit in found.rows[:4]:
        times = ", ".join(f"{ns / 1e6:.3f}" for ns in fit.mean_ns)
        print(
            f"{fit.name:16} {times} ms/step, power {fit.power if fit.power is None else round(fit.power, 2)}"
        )
    for fit in found.flagged:
        print(f"{fit.name} grows, but should not: {fit.expected.why if fit.expected else ''}")
    for note in found.notes:
        print("note:", note)


if __name__ == "__main__":
    main()
