"""Tensor parallelism: several ranks compute what one does, leave one folder, and can be made late on purpose."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hta_dsv4.capture import parallel_campaign  # noqa: E402
from hta_dsv4.capture.command import CaptureOptions, check_options  # noqa: E402
from hta_dsv4.capture.config import FLASH, PRO, TINY, StepShape  # noqa: E402
from hta_dsv4.capture.linear import Linear  # noqa: E402
from hta_dsv4.capture.parallel import ALONE, Ranks, ranks_from_environment  # noqa: E402
from hta_dsv4.capture.sharding import shard_config, shard_weights  # noqa: E402
from hta_dsv4.capture.straggler import Straggler, measured_us, spend  # noqa: E402
from hta_dsv4.capture.switches import Switches  # noqa: E402
from hta_dsv4.capture.weights import ModelWeights, random_weights  # noqa: E402
from hta_dsv4.capture.workload import DecodeStep  # noqa: E402
from hta_dsv4.errors import HtaDsv4Error  # noqa: E402
from hta_dsv4.trace.manifest import FOLDER_MANIFEST, manifest_for, read_folder_manifest  # noqa: E402

torch.set_num_threads(1)
HERE = Path(__file__).parent
KERNELS = HERE.parent / "kernels"
PAIR = [Ranks(rank, 2, rank) for rank in range(2)]
ALL_REDUCES = 2 * len(TINY.layers) + 1
SET = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    """Run something as several processes of this host."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *words,
    ]
    paths = os.pathsep.join([str(HERE.parent), str(KERNELS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


# --- the same numbers -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    """What two gloo processes found out about themselves; see two_ranks.py."""
    done = torchrun(str(HERE / "two_ranks.py"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# Each rank rounds its partial sum to bfloat16 (relative error 2^-9) before they are added, where one rank rounds the
# whole sum once: 0.3 % after the first attention, about 1 % after five layers. FP8 activations amplify it, because a
# value at the edge between two codes falls to the other side: about 5 %. A sum left out or cut wrongly makes 50 % up.
@pytest.mark.parametrize(("gemm", "logits"), [("fp32", 0.02), ("fp8", 0.1)])
def test_two_ranks_compute_what_one_does(compared: dict[str, Any], gemm: str, logits: float) -> None:
    """The tiny step by two processes -> the numbers of one within the rounding of partial sums; same next tokens."""
    found = compared[gemm]
    assert found["embedding_equal"]  # all but one rank add zero: no rounding at all
    assert 0 < found["first_attention"] < 2**-7
    assert found["logits"] < logits
    assert found["tokens"] >= found["of"] - 1


def test_all_ranks_hold_the_same_bits(compared: dict[str, Any]) -> None:
    """After every step -> logits of both ranks bit for bit, or routing would drift apart."""
    assert all(compared[gemm]["ranks_agree"] for gemm in ("fp32", "fp8"))


def test_two_sums_a_layer_and_one_for_the_embedding(compared: dict[str, Any]) -> None:
    """One step of five layers -> eleven sums over ranks, each the sum."""
    assert compared["fp32"]["sums"] == ALL_REDUCES == 11
    assert compared["sum"]["value"] == 1.0 + 2.0


# --- weights ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> ModelWeights:
    """The tiny model in FP8."""
    return random_weights(TINY, Switches(), torch.Generator().manual_seed(0))


def test_parts_put_together_are_the_model(whole: ModelWeights) -> None:
    """Both ranks' parts side by side -> every sharded tensor of the model, scales included."""
    parts = [shard_weights(whole, ranks) for ranks in PAIR]
    for i, layer in enumerate(whole.layers):
        mine = [part.layers[i] for part in parts]

        def joined(name: str, dim: int, mine: list[Any] = mine) -> Linear:
            pieces = [getattr(m, name) for m in mine]
            return Linear(
                torch.cat([p.weight for p in pieces], dim), torch.cat([p.scales for p in pieces], dim)
            )

        for name, dim in (("wq_b", 1), ("wo_a", 0), ("wo_b", 2), ("shared_w2", 2)):
            wanted, found = getattr(layer, name), joined(name, dim)
            assert torch.equal(found.weight.float(), wanted.weight.float()), name
            assert torch.equal(found.scales, wanted.scales), name
        gate, up = (
            torch.cat([m.shared_w13.weight.chunk(2, 1)[half] for m in mine], 1).float() for half in range(2)
        )
        assert torch.equal(torch.cat([gate, up], 1), layer.shared_w13.weight.float())
        for field in ("w13", "s13"):
            halves = [
                torch.cat([getattr(m.experts, field).chunk(2, 1)[h] for m in mine], 1) for h in range(2)
            ]
            assert torch.equal(torch.cat(halves, 1), getattr(layer.experts, field))
        for field in ("w2", "s2"):
            assert torch.equal(
                torch.cat([getattr(m.experts, field) for m in mine], 2), getattr(layer.experts, field)
            )
        assert torch.equal(torch.cat([m.sink for m in mine]), layer.sink)
    assert torch.equal(torch.cat([p.embedding for p in parts]), whole.embedding)
    assert torch.equal(torch.cat([p.head.lm_head for p in parts]), whole.head.lm_head)


def test_what_is_replicated_stays_whole(whole: ModelWeights) -> None:
    """Indexer, compressors, router, hyper-connections, first projection -> the very tensors of the model."""
    part = shard_weights(whole, PAIR[1])
    assert part.mhc_attn is whole.mhc_attn
    for mine, layer in zip(part.layers, whole.layers, strict=True):
        for name in ("wqkv_a", "indexer", "compressor", "router", "router_bias", "hash_table", "attn_norm"):
            assert getattr(mine, name) is getattr(layer, name)


def test_shared_sets_stay_shared(whole: ModelWeights) -> None:
    """Layers that take turns on a weight set -> they do so in the part too: no copy per layer."""
    part = shard_weights(whole, PAIR[0])
    assert len({id(w) for w in part.layers}) == len({id(w) for w in whole.layers}) == whole.sets
    assert len({id(w.experts) for w in part.layers}) == len({id(w.experts) for w in whole.layers})
    assert shard_weights(whole, ALONE) is whole


@pytest.mark.parametrize(
    ("config", "ranks", "message"),
    [
        (FLASH, 3, "3 ranks cannot share flash evenly (64 attention heads, 8 output groups, .*); start 1, 2, 4, 8"),
        (FLASH, 16, "16 ranks cannot share flash evenly (8 output groups); start 1, 2, 4, 8 with"),
        (PRO, 16, "16 ranks cannot share pro evenly (24 blocks of 128 channels in an expert); start 1, 2, 4, 8 "),
        (TINY, 4, "4 ranks cannot share tiny evenly (2 output groups, 2 blocks .*); start 1, 2 with"),
    ],
)  # fmt: skip
def test_uneven_shares(config: Any, ranks: int, message: str) -> None:
    """A number of ranks that divides something unevenly -> one line: what, and which numbers do."""
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(HtaDsv4Error, match=pattern) as caught:
        shard_config(config, ranks)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_even_shares(ranks: int) -> None:
    """Flash on 1, 2, 4, 8 ranks -> heads, groups and expert width divided, the rest as it was."""
    found = shard_config(FLASH, ranks)
    assert (found.heads * ranks, found.o_groups * ranks, found.moe_inter * ranks) == (64, 8, 2048)
    assert replace(found, heads=64, o_groups=8, moe_inter=2048) == FLASH


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `torchrun -m hta_dsv4 capture` of the tiny model leaves, a straggler planted."""
    out = tmp_path_factory.mktemp("tp")
    done = torchrun(
        "-m", "hta_dsv4", "capture", "--config", "tiny", "--device", "cpu", "--context", "300", "--max-context",
        "512", "--steps", "2", "--warmup", "1", "--baseline", "1", "--out", str(out), "--straggler", "1:2:3000",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("wrote ") == 1  # one rank speaks for both
    (folder,) = out.iterdir()
    return folder


@cache
def events_of(trace: Path) -> list[dict[str, Any]]:
    """Events of a kept trace."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return events


def test_a_trace_per_rank_and_one_manifest(captured: Path) -> None:
    """Two processes -> a folder of two traces and one manifest that speaks of both, in rank order."""
    assert captured.name == "split_k_c2_tp2_straggler"
    traces = [f"split_k_c2_tp2_straggler_rank{rank}.trace.json.gz" for rank in range(2)]
    assert sorted(p.name for p in captured.iterdir()) == [FOLDER_MANIFEST, *traces]
    manifests = read_folder_manifest(captured / FOLDER_MANIFEST)
    assert [m.trace for m in manifests] == traces
    assert [(m.parallel["rank"], m.parallel["world_size"], m.parallel["backend"]) for m in manifests] == [
        (0, 2, "gloo"), (1, 2, "gloo"),
    ]  # fmt: skip
    assert all(m.timing.unprofiled_step_ms > 0 for m in manifests)
    found = manifest_for(captured / traces[1])
    assert found is not None
    assert found.parallel["rank"] == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_trace_of_a_rank(captured: Path, rank: int) -> None:
    """Each trace -> says its rank itself, and holds the step's collectives with the layers they belong to."""
    path = captured / f"{captured.name}_rank{rank}.trace.json.gz"
    info = json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]
    assert (info["rank"], info["world_size"], info["backend"]) == (rank, 2, "gloo")
    names = [str(e.get("name")) for e in events_of(path) if e.get("cat") in ("cpu_op", "user_annotation")]
    assert names.count("c10d::allreduce_") == 2 * ALL_REDUCES  # two steps
    scopes = [n for n in names if n.endswith("/comm/all_reduce")]
    assert len(scopes) == 2 * ALL_REDUCES
    half = [f"layer.{n}/{part}/comm/all_reduce" for n in range(5) for part in ("attention", "moe")]
    assert scopes[:ALL_REDUCES] == ["embedding/comm/all_reduce", *half]
    assert names.count("head/comm/all_gather") == 2


def test_straggler_is_where_it_was_planted(captured: Path) -> None:
    """Rank 1, layer 2, 3000 us -> in that rank's trace alone, before that sum, so long; the manifest says so."""
    paths = [captured / f"{captured.name}_rank{rank}.trace.json.gz" for rank in range(2)]
    assert measured_us(paths[0]) == []
    took = measured_us(paths[1])
    assert len(took) == 2
    assert all(us > 2999 for us in took)
    order = [str(e["name"]) for e in events_of(paths[1]) if e.get("cat") == "user_annotation"]
    at = order.index("layer.2/attention/planted_delay")
    assert order[at - 1] == "layer.2/attention/out_proj"
    assert order[at + 1] == "layer.2/attention/comm/all_reduce"
    for manifest in read_folder_manifest(captured / FOLDER_MANIFEST):
        planted = manifest.parallel["straggler"]
        assert (planted["rank"], planted["layer"], planted["microseconds"]) == (1, 2, 3000.0)
        assert planted["measured_min_us"] == pytest.approx(min(took), abs=1e-3)
        assert planted["measured_max_us"] == pytest.approx(max(took), abs=1e-3)


def test_wrong_number_of_ranks_on_the_command_line(tmp_path: Path) -> None:
    """The first of three ranks of the tiny model -> one line with the remedy before the ranks meet, and no file."""
    words = ["capture", "--config", "tiny", "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "hta_dsv4", *words], capture_output=True, text=True, check=False,
        env={**os.environ, **SET, "RANK": "0", "WORLD_SIZE": "3", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("hta-dsv4: 3 ranks cannot share tiny evenly")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


TINY_OPTIONS = CaptureOptions(config="tiny", device="cpu", context=64, max_context=256, concurrency=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"straggler": Straggler(1, 2, 5.0)}, "nobody waits for a single process"),
        ({"ranks": PAIR[0], "straggler": Straggler(2, 2, 5.0)}, "no such rank; they are 0 to 1"),
        ({"ranks": PAIR[0], "straggler": Straggler(1, 5, 5.0)}, "tiny has no such layer; they are 0 to 4"),
        ({"ranks": PAIR[0], "out": Path("x.json")}, "--out x.json: 2 ranks write a file each; name a folder"),
    ],
)
def test_options_that_do_not_go_together(
    change: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A straggler that cannot be, one file for two ranks -> one line, before the ranks meet."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HtaDsv4Error, match=re.escape(message)):
        check_options(replace(TINY_OPTIONS, **change))


def test_every_capture_has_a_folder_of_its_own() -> None:
    """Ranks, straggler -> told apart by the folder's name; a single process writes a file as ever."""
    tp = replace(TINY_OPTIONS, out=Path("t"), ranks=PAIR[1])
    assert tp.trace_path == Path("t/split_k_c2_tp2/split_k_c2_tp2_rank1.trace.json.gz")
    late = replace(tp, straggler=Straggler(1, 2, 5.0))
    assert late.trace_path.parent == Path("t/split_k_c2_tp2_straggler")
    assert replace(TINY_OPTIONS, out=Path("t")).trace_path == Path("t/split_k_c2.trace.json.gz")


# --- the environment --------------------------------------------------------------------------------------------


def test_who_am_i() -> None:
    """What torchrun sets -> rank, size, GPU; nothing set, or one process -> alone."""
    assert ranks_from_environment(SET) == Ranks(1, 2, 1)
    assert ranks_from_environment({}) == ranks_from_environment(SET | {"WORLD_SIZE": "1"}) == ALONE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MASTER_ADDR": None}, "WORLD_SIZE is 2 and MASTER_ADDR not set: start with torchrun"),
        ({"RANK": "one"}, "RANK 'one', .* not whole numbers"),
        ({"RANK": "2"}, "RANK 2 is none of the 2 ranks"),
    ],
)
def test_environment_that_makes_no_sense(change: dict[str, str | None], message: str) -> None:
    """A cluster's own WORLD_SIZE, or nonsense -> one line with the remedy."""
    environ = {k: v for k, v in (SET | change).items() if v is not None}
    with pytest.raises(HtaDsv4Error, match=message):
        ranks_from_environment(environ)


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 on a host with one GPU -> one line with the remedy."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert PAIR[0].device("cuda") == "cuda:0"
    assert PAIR[1].device("cpu") == "cpu"
    with pytest.raises(HtaDsv4Error, match=r"rank 1 needs a GPU of its own .* start at most 1"):
        PAIR[1].device("cuda")


# --- the straggler ----------------------------------------------------------------------------------------------


def test_straggler_as_written() -> None:
    """RANK:LAYER:MICROSECONDS -> those."""
    assert Straggler.parse("1:20:500.5") == Straggler(1, 20, 500.5)


@pytest.mark.parametrize("text", ["", "1:20", "1:20:500:3", "a:20:500", "1:2.5:500", "1:20:x"])
def test_straggler_written_otherwise(text: str) -> None:
    """Anything else -> one line with an example."""
    with pytest.raises(HtaDsv4Error, match=r"write it as RANK:LAYER:MICROSECONDS, e\.g\. 1:20:500"):
        Straggler.parse(text)


@pytest.mark.parametrize("time", ["0", "-5", "nan", "inf", "2e6"])
def test_straggler_of_an_impossible_time(time: str) -> None:
    """No time, a negative one, or one after which the others give up -> one line."""
    with pytest.raises(HtaDsv4Error, match="above 0 and at most 1000000 us"):
        Straggler.parse(f"1:20:{time}")


def test_only_the_straggler_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of either rank -> spends the time once, in its layer, on the chosen rank alone."""
    cpu = Switches(attention="reference", moe="torch", gemm="fp32", glue="torch")
    small = replace(TINY, layers=TINY.layers[:3], experts=6)
    for ranks in PAIR:
        step = DecodeStep(
            small, StepShape(1, 64, 256), cpu, "cpu", ranks=ranks, straggler=Straggler(1, 1, 7.0)
        )
        order: list[object] = []
        parts = replace(
            step.parts,
            all_reduce=lambda x, _ranks, order=order: order.append("sum") or x,
            all_gather=lambda x, ranks: torch.cat([x] * ranks.world_size, 1),
            spend=lambda us, _device, order=order: order.append(us),
        )
        monkeypatch.setattr(step, "parts", parts)
        step()
        # embedding; layer 0: attention, MoE; layer 1: (late) attention, MoE; layer 2
        assert order == ["sum"] * 3 + ([7.0] if ranks.rank == 1 else []) + ["sum"] * 4


def test_time_is_spent_on_the_cpu() -> None:
    """2 ms on a CPU -> not less."""
    import time

    begin = time.perf_counter()
    spend(2000.0, torch.device("cpu"))
    assert time.perf_counter() - begin >= 0.002


_COMPILE = """
import json
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hta_dsv4.capture.straggler import _planted_delay_kernel as kernel
made = {}
for capability in sys.argv[1:]:
    source, target = ASTSource(kernel, signature={"ns": "i32"}), GPUTarget("cuda", int(capability), 32)
    made[capability] = triton.compile(source, target=target, options={"num_warps": 1}).asm["ptx"]
print(json.dumps(made))
"""
CAPABILITIES = (90, 100, 120)


@pytest.fixture(scope="module")
def delay_ptx() -> dict[str, str]:
    """The delay kernel for each architecture, from one process; where Triton interprets, it cannot compile."""
    paths = os.pathsep.join([str(HERE.parent), str(KERNELS)])
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, *map(str, CAPABILITIES)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return made


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_delay_kernel_reads_the_clock_on_every_turn(capability: int, delay_ptx: dict[str, str]) -> None:
    """Compiled for each architecture -> the clock is read before the loop and inside it, not once for all."""
    ptx = delay_ptx[str(capability)]
    assert ptx.count("%globaltimer") == 2
    label = re.search(r"@%p\d+ bra\s+(\$L__BB\d+_\d+);\s*\n(?:.*\n)*?\1:", ptx) or re.search(
        r"(\$L__BB\d+_\d+):(?:.*\n)*?.*%globaltimer(?:.*\n)*?.*@%p\d+ bra\s+\1", ptx
    )
    assert label is not None


# --- the campaign of captures -----------------------------------------------------------------------------------


def test_campaign_captures_with_and_without_a_straggler() -> None:
    """The plan of two ranks -> both launch modes, each normal and with a late last rank in a c4 layer."""
    rows = parallel_campaign.plan(FLASH, PAIR[0])
    assert [(r.variant, r.straggler is not None) for r in rows] == [
        ("split_k", False), ("split_k", True), ("cuda_graph", False), ("cuda_graph", True),
    ]  # fmt: skip
    for row in rows:
        if row.straggler is not None:
            row.straggler.check(FLASH, PAIR[0])
            assert row.straggler.rank == 1
            assert FLASH.layers[row.straggler.layer].value == "c4"
    assert parallel_campaign.expected_all_reduces(FLASH) == 87


def test_campaign_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Started without torchrun -> exit code 2 and one line."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert parallel_campaign.main(["--out", str(tmp_path)]) == 2
    assert "start with torchrun" in capsys.readouterr().err


def test_campaign_counts_collectives(captured: Path) -> None:
    """A kept trace -> all-reduces and all-gathers per step."""
    found = parallel_campaign.collectives(captured / f"{captured.name}_rank0.trace.json.gz", 2)
    assert (found["all_reduces"], found["all_gathers"]) == (ALL_REDUCES, 1)
    assert found["median_us"] > 0
