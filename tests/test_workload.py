"""The decode step: what it launches, what it writes, and that its switches change speed and not numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from dsv4_kernels.indexer import pack_index_k, unpack_index_k  # noqa: E402
from dsv4_kernels.layout import pack_kv  # noqa: E402

from hta_dsv4.capture.caches import PageTable, entry_slots, make_tables, write_index_k, write_kv  # noqa: E402
from hta_dsv4.capture.compressor import CompressorState, CompressorWeights, compress  # noqa: E402
from hta_dsv4.capture.config import FLASH, PRO, TINY, LayerKind, StepShape, model_config  # noqa: E402
from hta_dsv4.capture.glue import hadamard, rope_table, rotate_  # noqa: E402
from hta_dsv4.capture.linear import random_linear  # noqa: E402
from hta_dsv4.capture.state import step_metadata  # noqa: E402
from hta_dsv4.capture.switches import CHOICES, VARIANTS, Switches, variant_switches  # noqa: E402
from hta_dsv4.capture.workload import DecodeStep  # noqa: E402
from hta_dsv4.errors import HtaDsv4Error  # noqa: E402

CPU = Switches(attention="reference", moe="torch", gemm="fp32", glue="torch")
torch.set_num_threads(1)  # the tiny step is small work: more threads wait for each other
SHAPE = StepShape(batch=4, context=1500, max_context=4096)
INTERPRETED = Path(__file__).with_name("interpreted_step.py")


def logits_of(switches: Switches, shape: StepShape = SHAPE, seed: int = 0) -> torch.Tensor:
    """Logits of the first step of the tiny model."""
    step = DecodeStep("tiny", shape, switches, "cpu", seed)
    step()
    assert step.logits is not None
    return step.logits


def relative_errors(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Per request, ||a - b|| / ||b||."""
    return (a - b).norm(dim=1) / b.norm(dim=1)


# --- geometry -----------------------------------------------------------------------------------------------


def test_layer_lists() -> None:
    """Published models -> 43 and 61 layers, of which 21 and 30 have an indexer."""
    assert len(FLASH.layers) == 43
    assert [FLASH.count(k) for k in LayerKind] == [2, 21, 20]
    assert len(PRO.layers) == 61
    assert PRO.count(LayerKind.C4) == 30
    assert FLASH.layers[:4] == (LayerKind.SWA, LayerKind.SWA, LayerKind.C4, LayerKind.C128)
    assert FLASH.layers[-1] is LayerKind.C4


def test_static_widths_follow_the_maximum_context() -> None:
    """Same real context, larger maximum -> wider page table and c128 list, same capacity."""
    small, large = StepShape(32, 4096, 8192), StepShape(32, 4096, 1 << 20)
    assert (small.index_pages, small.c128_width) == (32, 64)
    assert (large.index_pages, large.c128_width) == (4096, 8192)
    assert small.capacity == large.capacity


@pytest.mark.parametrize(
    ("sizes", "needle"),
    [((0, 10, 20), "--concurrency 0"), ((1, 0, 20), "--context 0"), ((1, 30, 20), "--max-context 20")],
)
def test_impossible_shapes(sizes: tuple[int, int, int], needle: str) -> None:
    """A size no server accepts -> one line naming the option."""
    with pytest.raises(HtaDsv4Error, match=needle):
        StepShape(*sizes)


def test_unknown_names() -> None:
    """Unknown model, variant, switch or choice -> an error that lists what there is."""
    with pytest.raises(HtaDsv4Error, match="flash, pro, tiny"):
        model_config("huge")
    with pytest.raises(HtaDsv4Error, match="original, mma, split_k"):
        variant_switches("fastest")
    with pytest.raises(HtaDsv4Error, match="attention, indexer"):
        variant_switches("mine", {"attn": "mma"})
    with pytest.raises(HtaDsv4Error, match="simt, mma, split_k"):
        variant_switches("mine", {"attention": "wgmma"})


def test_each_variant_changes_one_lever() -> None:
    """The campaign's sequence -> each variant differs from one before it in exactly one switch."""
    names = list(VARIANTS)
    for i, name in enumerate(names[1:], start=1):
        mine = VARIANTS[name].as_dict()
        differences = [
            sum(mine[k] != VARIANTS[earlier].as_dict()[k] for k in CHOICES) for earlier in names[:i]
        ]
        assert min(differences) == 1, name


# --- caches -------------------------------------------------------------------------------------------------


def test_written_entry_equals_packed_entry() -> None:
    """One entry written in place -> the same bytes that packing the whole pool gives."""
    torch.manual_seed(1)
    kv = torch.randn(256, 512).bfloat16() * torch.logspace(-3, 3, 256)[:, None].bfloat16()
    want = pack_kv(kv.float(), 64)
    got = pack_kv(torch.zeros(256, 512), 64)
    slots = torch.randperm(256)
    write_kv(got, slots, kv[slots])
    assert torch.equal(got.records(), want.records())
    assert torch.equal(got.scales()[..., :7], want.scales()[..., :7])


def test_written_index_key_decodes_to_the_key() -> None:
    """One index key written in place -> decodes to it within e4m3 rounding, neighbours untouched."""
    torch.manual_seed(2)
    pool = pack_index_k(torch.zeros(128, 128))
    k = torch.randn(3, 128)
    slots = torch.tensor([5, 64, 127])
    write_index_k(pool, slots, k)
    decoded = unpack_index_k(pool).reshape(-1, 128).float()
    assert (relative_errors(decoded[slots], k) < 0.04).all()
    others = torch.ones(128, dtype=torch.bool)
    others[slots] = False
    assert (decoded[others] == 0).all()


def test_pages_are_scattered_distinct_and_stale_past_the_end() -> None:
    """Page tables -> own pages distinct and never the spare one, stale ids within the pool beyond."""
    tables = make_tables(StepShape(8, 5000, 65536), torch.Generator().manual_seed(0))
    for table in (tables.swa, tables.c4, tables.c128):
        own = table.pages[:, : table.owned]
        assert own.unique().numel() == own.numel()
        assert int(table.pages.max()) < table.pool_pages - 1
        assert int(table.pages.min()) >= 0
    assert tables.c4.pages.shape[1] == 65536 // 4 // 64
    assert not torch.equal(
        tables.c4.pages[0, : tables.c4.owned].sort().values, tables.c4.pages[0, : tables.c4.owned]
    )


@pytest.mark.parametrize("context", [1, 3, 4, 127, 128, 129, 255, 256, 257, 8192])
def test_metadata_at_boundaries(context: int) -> None:
    """Contexts around group and page boundaries -> lengths, -1 tails and write slots as the model defines them."""
    shape = StepShape(1, context, max(context, 512))
    step = DecodeStep("tiny", shape, CPU, "cpu")
    meta = step_metadata(step.position, shape, TINY.index_topk, step.tables, step.rope)
    position = int(step.position[0])
    seen = position + 1
    swa = meta.swa_slots[0, 0]
    assert int((swa >= 0).sum()) == min(seen, 128) == int(meta.swa_length[0])
    assert (swa[min(seen, 128) :] == -1).all()
    assert swa[0] == meta.write_slot[0]
    assert swa[swa >= 0].unique().numel() == min(seen, 128)
    assert int(meta.c4_length[0]) == seen // 4
    assert int(meta.c4_topk_length[0]) == min(max(seen // 4, 1), TINY.index_topk)
    c128 = meta.c128_slots[0, 0]
    assert int((c128 >= 0).sum()) == seen // 128
    assert (c128[seen // 128 :] == -1).all()
    for ratio, write, table in ((4, meta.c4_write, step.tables.c4), (128, meta.c128_write, step.tables.c128)):
        if seen % ratio == 0:
            assert int(write[0]) == int(entry_slots(table, torch.tensor([[seen // ratio - 1]])))
        else:
            assert int(write[0]) == table.spare_slot


def test_spare_slot_is_nobodys() -> None:
    """The spare slot -> lies in a page no request owns."""
    table = PageTable(torch.tensor([[0, 2]], dtype=torch.int32), 2, 4, 64)
    assert table.spare_slot // 64 == 3


# --- parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LayerKind.SWA, LayerKind.C4])
def test_rotation_and_its_inverse(kind: LayerKind) -> None:
    """Rotate, then rotate by the conjugate -> the vector itself; norms unchanged; other channels untouched."""
    torch.manual_seed(3)
    x = torch.randn(5, 3, 512)
    factors = rope_table(kind, 4000, torch.device("cpu"))[torch.tensor([0, 1, 77, 1000, 3999])]
    y = rotate_(x.clone(), factors)
    assert torch.equal(y[..., :448], x[..., :448])
    assert torch.equal(y[0], x[0])
    assert not torch.allclose(y[1], x[1])
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotate_(y, factors.conj()), x, atol=1e-5, rtol=1e-5)


def test_hadamard_is_orthonormal() -> None:
    """Hadamard of 128 -> its product with itself is the identity, within bf16."""
    h = hadamard(128, torch.device("cpu")).float()
    torch.testing.assert_close(h @ h.t(), torch.eye(128), atol=2e-2, rtol=0)


@pytest.mark.parametrize("groups", [1, 2])
def test_one_weight_in_three_formats(groups: int) -> None:
    """The same draw as FP32, BF16, FP8 -> equal weights, products equal within the format's rounding."""
    torch.manual_seed(4)
    x = torch.randn(3, groups, 256).bfloat16()
    x = x if groups > 1 else x[:, 0]
    y = {
        g: random_linear(128, 256, g, torch.Generator().manual_seed(5), groups)(x)
        for g in ("fp32", "bf16", "fp8")
    }
    exact = y["fp32"].float().flatten(1)
    assert (relative_errors(y["bf16"].float().flatten(1), exact) < 5e-3).all()
    fp8 = relative_errors(y["fp8"].float().flatten(1), exact)
    assert (fp8 < 5e-2).all()
    assert (fp8 > 0).all()


@pytest.mark.parametrize(("ratio", "overlap"), [(4, True), (8, False)])
def test_compressor_against_the_whole_sequence(ratio: int, overlap: bool) -> None:
    """Tokens fed one by one -> every emitted entry equals the softmax mean over the group read at once."""
    torch.manual_seed(6)
    dim, coff, groups = 128, 2 if overlap else 1, 3
    kv, gate = torch.randn(2, 1, groups * ratio, coff * dim)
    w = CompressorWeights(
        torch.empty(2 * coff * dim, 1), torch.randn(ratio, coff * dim), torch.ones(dim).bfloat16()
    )
    state = CompressorState(*torch.zeros(2, 1, coff * ratio, coff * dim))
    score = gate[0] + w.ape.repeat(groups, 1)
    for t in range(groups * ratio):
        kv_gate = torch.cat([kv[:, t], gate[:, t]], 1)
        entry, emit = compress(kv_gate, torch.tensor([t]), w, state, 1e-6)
        assert bool(emit) == (t % ratio == ratio - 1)
        if not emit or (overlap and t < ratio):  # the first overlapping group sees the zero state before it
            continue
        now = slice(t - ratio + 1, t + 1)
        if overlap:
            before = slice(t - 2 * ratio + 1, t - ratio + 1)
            values = torch.cat([kv[0, before, :dim], kv[0, now, dim:]])
            scores = torch.cat([score[before, :dim], score[now, dim:]])
        else:
            values, scores = kv[0, now], score[now]
        mean = (values * scores.softmax(0)).sum(0)
        want = mean * torch.rsqrt(mean.square().mean() + 1e-6)
        assert relative_errors(entry.float(), want[None])[0] < 1e-2


# --- the whole step -----------------------------------------------------------------------------------------


def test_step_feeds_itself_and_moves_on() -> None:
    """Three steps -> positions advance by one each, tokens are the last logits' argmax, nothing is NaN."""
    step = DecodeStep("tiny", SHAPE, CPU, "cpu")
    start = step.position.clone()
    for i in range(3):
        tokens = step()
        assert step.logits is not None
        assert torch.equal(tokens, step.logits.argmax(-1))
        assert torch.isfinite(step.logits).all()
        assert torch.equal(step.position, start + i + 1)


def test_position_stops_at_capacity() -> None:
    """More steps than the caches hold -> the position stays at the last slot instead of running out."""
    step = DecodeStep("tiny", StepShape(1, 60, 64), CPU, "cpu")
    for _ in range(8):
        step()
    assert int(step.position[0]) == 63


def test_same_seed_same_numbers() -> None:
    """Two models of one seed -> equal logits; another seed -> others."""
    assert torch.equal(logits_of(CPU), logits_of(CPU))
    assert not torch.allclose(logits_of(CPU), logits_of(CPU, seed=1))


def test_past_tokens_matter() -> None:
    """Other cache contents -> other logits: attention really reads the pages."""
    step = DecodeStep("tiny", SHAPE, CPU, "cpu")
    for cache in step.caches:
        cache.swa.data.zero_()
    step()
    assert step.logits is not None
    assert (relative_errors(step.logits, logits_of(CPU)) > 0.05).all()


@pytest.mark.parametrize(
    ("change", "bound"),
    [({"gemm": "bf16"}, 0.04), ({"gemm": "fp8"}, 0.15), ({"indexer": "torch_bf16"}, 0.04)],
)
def test_number_formats_give_the_same_logits(change: dict[str, str], bound: float) -> None:
    """Another number format of one part -> the same logits within that format's rounding through five layers."""
    errors = relative_errors(logits_of(replace(CPU, **change)), logits_of(CPU))
    assert (errors < bound).all(), errors


def test_kernels_give_the_same_logits() -> None:
    """Each Triton form of each part, interpreted -> the logits of the torch forms within bf16 rounding."""
    done = subprocess.run(
        [sys.executable, str(INTERPRETED)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout.splitlines()[-1])
    assert set(errors) == {"simt", "mma", "split_k", "indexer", "mhc", "moe", "glue"}
    assert all(0 <= e < 0.04 for e in errors.values()), errors
