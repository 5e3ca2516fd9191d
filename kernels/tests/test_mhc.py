"""mHC: both forms against float64, what Sinkhorn promises, and the launches the torch form makes."""

from __future__ import annotations

from typing import Any

import aot
import decode_requests
import pytest
import torch
from dsv4_kernels.mhc import MhcWeights, hc_head, mhc_post, mhc_pre
from dsv4_kernels.mhc_fused import pre_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

# Triton's interpreter cuts a float32 to bfloat16 instead of rounding it: twice the error of rounding.
BF16 = {"torch": 4e-3, "fused": 8e-3}


def generate_site(tokens: int, dim: int, seed: int) -> tuple[torch.Tensor, MhcWeights]:
    """Streams, and weights whose mixes have the spread of trained ones."""
    torch.manual_seed(seed)
    x = torch.randn(tokens, 4, dim).to(torch.bfloat16)
    fn = torch.randn(24, 4 * dim) * (4 * dim) ** -0.5
    return x, MhcWeights(fn, torch.tensor([0.7, 1.3, 2.0]), torch.randn(24))


def plain_pre(
    x: torch.Tensor, w: MhcWeights, eps: float, hc_eps: float, iters: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The definition, token by token in float64."""
    ys, posts, combs = [], [], []
    for streams in x.double():
        flat = streams.flatten()
        mixes = w.fn.double() @ flat / (flat.square().mean() + eps).sqrt()
        pre = 1 / (1 + torch.exp(-(mixes[:4] * w.scale[0] + w.base[:4]))) + hc_eps
        posts.append(2 / (1 + torch.exp(-(mixes[4:8] * w.scale[1] + w.base[4:8]))))
        comb = (mixes[8:] * w.scale[2] + w.base[8:]).view(4, 4).exp()
        comb = comb / comb.sum(1, keepdim=True) + hc_eps
        comb = comb / (comb.sum(0, keepdim=True) + hc_eps)
        for _ in range(iters - 1):
            comb = comb / (comb.sum(1, keepdim=True) + hc_eps)
            comb = comb / (comb.sum(0, keepdim=True) + hc_eps)
        combs.append(comb)
        ys.append(pre @ streams)
    return torch.stack(ys), torch.stack(posts), torch.stack(combs)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("variant", ["torch", "fused"])
@settings(max_examples=12, deadline=None)
@given(
    tokens=st.sampled_from([1, 2, 15, 17, 33]),
    dim=st.sampled_from([64, 192, 256]),
    iters=st.sampled_from([1, 2, 20]),
    eps=st.sampled_from([1e-6, 1e-2]),
    seed=st.integers(0, 2**16),
)
def test_pre_matches_definition(
    variant: str, tokens: int, dim: int, iters: int, eps: float, seed: int
) -> None:
    """Any batch, width, iterations and epsilons -> input, post and comb are the definition's."""
    x, w = generate_site(tokens, dim, seed)
    y, post, comb = mhc_pre(x, w, eps=eps, hc_eps=eps, iters=iters, variant=variant)
    want_y, want_post, want_comb = plain_pre(x, w, eps, eps, iters)
    assert relative(y, want_y) <= BF16[variant]
    assert relative(post, want_post) <= 2e-6
    assert relative(comb, want_comb) <= 2e-5


@pytest.mark.parametrize("variant", ["torch", "fused"])
def test_sinkhorn_makes_rows_and_columns_sum_to_one(variant: str) -> None:
    """20 iterations at epsilon 1e-6 -> a doubly stochastic matrix, columns exact, rows nearly."""
    x, w = generate_site(5, 64, 1)
    comb = mhc_pre(x, w, variant=variant)[2]
    torch.testing.assert_close(comb.sum(1), torch.ones(5, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(comb.sum(2), torch.ones(5, 4), atol=1e-2, rtol=0)


@pytest.mark.parametrize("variant", ["torch", "fused"])
@pytest.mark.parametrize("dim", [64, 1088])
def test_post_matches_definition(variant: str, dim: int) -> None:
    """A comb that is not symmetric -> out_j = post_j * block + sum_i comb[i, j] * x_i, the input left alone."""
    x, _ = generate_site(3, dim, 2)
    block = torch.randn(3, dim).to(torch.bfloat16)
    post, comb, before = torch.rand(3, 4), torch.rand(3, 4, 4), x.clone()
    got = mhc_post(block, x, post, comb, variant=variant)
    want = torch.einsum("tj,td->tjd", post.double(), block.double())
    want += torch.einsum("tij,tid->tjd", comb.double(), x.double())
    assert relative(got, want) <= BF16[variant]
    assert torch.equal(x, before)


@pytest.mark.parametrize("variant", ["torch", "fused"])
@pytest.mark.parametrize("dim", [64, 1088])
def test_head_matches_definition(variant: str, dim: int) -> None:
    """The last mix -> sigmoid weights of the normalised product, times the streams."""
    x, w = generate_site(3, dim, 3)
    fn, scale, base = w.fn[:4].contiguous(), torch.tensor([1.5]), torch.randn(4)
    got = hc_head(x, fn, scale, base, variant=variant)
    flat = x.double().flatten(1)
    mixes = flat @ fn.double().T / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt()
    weights = torch.sigmoid(mixes * 1.5 + base.double()) + 1e-6
    assert relative(got, torch.einsum("ti,tid->td", weights, x.double())) <= BF16[variant]


def test_torch_form_launches_what_a_fallback_launches() -> None:
    """One site in torch -> one product and some 140 operations, most of them Sinkhorn's, as in the shipped traces."""
    views = ("view", "slice", "select", "unsqueeze", "t.default", "detach", "empty", "transpose", "alias")
    launches: list[str] = []

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(func)
            if not any(view in name for view in views):
                launches.append(name)
            return func(*args, **(kwargs or {}))

    x, w = generate_site(2, 64, 4)
    with Counter():
        mhc_pre(x, w, variant="torch")
    assert sum("mm" in name for name in launches) == 1
    assert 134 <= len(launches) <= 142


@pytest.mark.parametrize(("tokens", "parts"), [(1, 128), (16, 128), (17, 64), (128, 16), (4096, 1)])
def test_parts_follow_static_shapes(tokens: int, parts: int) -> None:
    """More tokens -> fewer parts of K, so that the programs stay about as many as SMs."""
    assert pre_parts(tokens, 16384) == parts
    assert pre_parts(1, 256) == 2


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x, w: mhc_pre(x.float(), w), "x: expected a contiguous bfloat16"),
        (lambda x, w: mhc_pre(x[:, :3], w), r"x: .*\[T, 4, D\]"),
        (lambda x, w: mhc_pre(x[:, :, :64].contiguous(), w), r"w.fn: .*\[24, 256\]"),
        (lambda x, w: mhc_pre(x, w, iters=0), "iters: expected a positive integer"),
        (lambda x, w: mhc_pre(x, w, iters=1.5), "iters: expected a positive integer"),
        (lambda x, w: mhc_pre(x, None), "w: expected a MhcWeights, got NoneType"),
        (lambda x, w: mhc_pre(x, w, eps=-1.0), "eps: expected a finite number of at least 0, got -1"),
        (lambda x, w: mhc_pre(x, w, hc_eps=float("nan")), "hc_eps: expected a finite number"),
        (lambda x, w: mhc_pre(x[:0], w), "x: expected T > 0"),
        (
            lambda x, w: hc_head(x, w.fn[:4], w.scale[:1], w.base[:4], eps=None),
            "eps: expected a finite number",
        ),
        (lambda x, w: mhc_pre(x, w, variant="triton"), "variant: expected one of auto, torch, fused"),
        (lambda x, w: MhcWeights(w.fn, w.scale[:2], w.base), r"scale: .*\[3\]"),
        (
            lambda x, w: mhc_post(x[:, 0].contiguous(), x, torch.zeros(3, 3), torch.zeros(3, 4, 4)),
            r"post: .*\[3, 4\]",
        ),
        (lambda x, w: hc_head(x, w.fn, w.scale[:1], w.base[:4]), r"fn: .*\[4, 512\]"),
    ],
)
def test_bad_argument_is_named(call: Any, named: str) -> None:
    """One wrong argument -> a ValueError that names it and says what was expected."""
    x, w = generate_site(3, 128, 5)
    with pytest.raises(ValueError, match=named):
        call(x, w)


def test_kernels_compile_without_spills() -> None:
    """sm_90, sm_100 and sm_120 -> no spills, shared memory legal, tensor cores in the product alone."""
    aot.assert_clean(decode_requests.mhc(), "gemm")
