"""Budgets on captures of several ranks: what one rank loses, the job loses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import Done, cli
from tests.gate_traces import ATTENTION, budgets, made

TEXT = """
[step.sum]
max_increase_percent = 3
[bucket.attention]
max_increase_percent = 3
max_launches = 2
"""


def folder(path: Path, attention: Sequence[float], seed: int = 0, **more: object) -> str:
    """A capture: one trace per rank, whose attention kernels take what is said."""
    for rank, us in enumerate(attention):
        made(
            path / f"rank{rank}.json.gz",
            attention=us,
            rank=rank,
            seed=seed + rank,
            world_size=len(attention),
            **more,
        )  # type: ignore[arg-type]
    return str(path)


def gate(tmp_path: Path, *args: str, text: str = TEXT) -> Done:
    file = budgets(tmp_path / "budgets.toml", text)
    return cli("gate", "--budget", str(file), "--folders", "ranks", *args)


def checks(done: Done) -> dict[str, dict]:
    return {f"{c['kind']} {c['name']} {c['limit']}": c for c in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize("slow", range(4))
def test_a_regression_of_any_rank_fails(tmp_path, slow):
    """Attention 10 % slower on one of four ranks, whichever -> exit code 1, and that rank and its kernel are named."""
    base = folder(tmp_path / "main", [100] * 4)
    new = folder(tmp_path / "new", [110 if r == slow else 100 for r in range(4)], seed=10)
    done = gate(tmp_path, "--baseline", base, new, "--json")
    found = checks(done)["bucket attention max_increase_percent"]
    assert (done.returncode, found["verdict"], found["rank"]) == (1, "fail", slow)
    assert [r["verdict"] for r in found["ranks"]] == ["fail" if r == slow else "pass" for r in range(4)]
    assert [c["kernel"] for c in found["causes"]] == [ATTENTION]
    shown = gate(tmp_path, "--baseline", base, new)
    assert f"bucket attention, rank {slow}" in shown.stdout
    assert "each of 4 ranks is held to every budget" in shown.stdout


def test_unchanged_ranks_pass_and_count_as_one_capture(tmp_path):
    """Two ranks a side, nothing changed -> exit code 0, one capture a side, bounds of both ranks together."""
    sides = [folder(tmp_path / name, [100, 120], seed=seed) for seed, name in ((0, "main"), (7, "new"))]
    done = gate(tmp_path, "--baseline", *sides, "--json")
    body = json.loads(done.stdout)
    assert (done.returncode, body["baseline"]["captures"], body["comparability"]["same"]["ranks"]) == (
        0,
        1,
        2,
    )
    assert any("of 4 noisy checks" in n for n in body["notes"])


def test_an_absolute_budget_holds_for_the_worst_rank(tmp_path):
    """A rank over its limit, another far below it -> fails, though the ranks' mean is within."""
    new = folder(tmp_path / "new", [50, 110])
    text = "[bucket.attention]\nmax_us = 210\nmax_launches = 2\n"
    found = checks(gate(tmp_path, new, "--json", text=text))
    assert (found["bucket attention max_us"]["verdict"], found["bucket attention max_us"]["rank"]) == (
        "fail",
        1,
    )
    assert found["bucket attention max_launches"]["verdict"] == "pass"


def test_several_ranks_that_fail_are_all_named(tmp_path):
    """Both ranks slower -> the worse one stands in the row, the other is named beside it."""
    sides = [folder(tmp_path / name, us) for name, us in (("main", [100, 100]), ("new", [110, 130]))]
    done = gate(tmp_path, "--baseline", *sides)
    assert done.returncode == 1
    assert "bucket attention, rank 1" in done.stdout
    assert "(rank 0 too)" in done.stdout


def test_other_ranks_are_not_compared(tmp_path):
    """Two ranks against three -> relative budgets inconclusive, absolute ones judged on all three."""
    base = folder(tmp_path / "main", [100, 100])
    new = folder(tmp_path / "new", [100, 100, 130])
    text = "[bucket.attention]\nmax_increase_percent = 3\nmax_us = 230\n"
    done = gate(tmp_path, "--baseline", base, new, "--json", text=text)
    found = checks(done)
    assert found["bucket attention max_increase_percent"]["verdict"] == "inconclusive"
    assert (found["bucket attention max_us"]["verdict"], found["bucket attention max_us"]["rank"]) == (
        "fail",
        2,
    )
    assert any("other ranks than each other" in n for n in json.loads(done.stdout)["notes"])


def test_a_row_of_one_rank_alone_has_its_budget(tmp_path):
    """[each.bucket] and a kernel that only one rank runs for over 1 % of its time -> judged, and it fails as new."""
    base = folder(tmp_path / "main", [100, 100], odd=0.001, noise=0.0)
    new = folder(tmp_path / "new", [100, 100], odd=0.001, noise=0.0)
    made(tmp_path / "new" / "rank1.json.gz", odd=4.0, rank=1, world_size=2, noise=0.0)
    done = gate(tmp_path, "--baseline", base, new, "--json", text="[each.bucket]\nmax_increase_percent = 5\n")
    found = checks(done)["bucket unknown max_increase_percent"]
    assert (done.returncode, found["verdict"], found["rank"]) == (1, "fail", 1)


def test_the_shipped_straggler_fails_by_the_kernel_of_one_rank(tmp_path):
    """A delay planted on rank 1 -> rank 1 fails by a new kernel, rank 0 by the waits for it; the median hid both."""
    text = "[each.bucket]\nmax_increase_percent = 5\n"
    done = gate(
        tmp_path, "--baseline", "cuda_graph_c32_tp2", "cuda_graph_c32_tp2_straggler", "--json", text=text
    )
    found = checks(done)
    failed = {name: c["rank"] for name, c in found.items() if c["verdict"] == "fail"}
    assert done.returncode == 1
    assert failed == {
        "bucket communication max_increase_percent": 0, "bucket unknown max_increase_percent": 1,
    }  # fmt: skip
    assert "planted" in found["bucket unknown max_increase_percent"]["causes"][0]["kernel"]
