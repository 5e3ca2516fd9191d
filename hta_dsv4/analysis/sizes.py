"""How much of a kernel's change is more or fewer launches, where one name is launched in several sizes.

A name such as a copy's stands for launches of very different size. A mean duration over all of them would price one
launch more at what none costs, and call it a change of count when the same launches merely grew. So launches are
compared size by size (a kernel's grid, a copy's bytes):

* at a size that both variants have, a change of their number is priced at the midpoint of both durations there;
* launches at sizes that only one variant has are the other's at another size, as long as there are at most
  :data:`MANY` times as many on either side (what is too long for one launch is divided into some): all of their change
  is duration;
* what is left comes and goes at once at several sizes: as many as leave one size and join another are the same
  launches, too, and only the surplus counts.

Swapping the variants negates the result, exactly.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from fractions import Fraction

MANY = 4
"""Launches at new sizes are those at the sizes that are gone, when they are at most this many times more or fewer."""
# A judgement. Conserved work would tell launches that were divided from others, but it is not conserved: what is
# divided into more launches is so because it grew. Between variants of the shipped campaign 3 of the 475 kernels that
# change sizes keep their CTAs and bytes; 474 have at most 3 times as many launches afterwards, the other one 44 times.

Sizes = Mapping[Hashable, tuple[Fraction, Fraction]]
"""Size -> launches per step, more than 0, and their time per step in ns."""


def count_effect(base: Sizes, other: Sizes) -> Fraction:
    """What more or fewer launches of one kernel do to its time per step; the rest of the change is duration.

    Args:
        base: its launches by size in the variant before.
        other: in the one after.

    Returns:
        ns per step; 0 where the number of launches is the same.
    """
    gone = sum((base[s][0] for s in base.keys() - other.keys()), Fraction())
    new = sum((other[s][0] for s in other.keys() - base.keys()), Fraction())
    resized = gone and new and max(gone, new) <= MANY * min(gone, new)
    less, more, cost_less, cost_more = (Fraction() for _ in range(4))
    for size in base.keys() | other.keys():
        (n0, t0), (n1, t1) = (
            base.get(size, (Fraction(), Fraction())),
            other.get(size, (Fraction(), Fraction())),
        )
        if not (n0 and n1) and resized:
            continue
        each = (t0 / n0 + t1 / n1) / 2 if n0 and n1 else (t0 + t1) / (n0 + n1)
        if n1 > n0:
            more, cost_more = more + n1 - n0, cost_more + (n1 - n0) * each
        else:
            less, cost_less = less + n0 - n1, cost_less + (n0 - n1) * each
    found = Fraction()
    if more > less:
        found = cost_more * (1 - less / more)
    elif less > more:
        found = -cost_less * (1 - more / less)
    # resized launches may make up for those that came or went elsewhere: then there are no more or fewer in all
    in_all = sum((n for n, _ in other.values()), Fraction()) - sum((n for n, _ in base.values()), Fraction())
    return found if found * in_all > 0 else Fraction()
