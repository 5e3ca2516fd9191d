"""From spellings to words."""

from __future__ import annotations

import pytest

from hta_dsv4.classify.lexicon import Lexicon
from hta_dsv4.classify.names import MAX_CHARS, normalise, words


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("FusedAddRMSNormKernel", "_fused_add_rmsnorm_kernel_"),
        ("rms_norm_kernel", "_rmsnorm_kernel_"),
        ("topKPerRowDecode", "_topk_per_row_decode_"),
        ("moeA2ALamportCombineKernel", "_moe_a2a_lamport_combine_kernel_"),
        ("QkvE4m3OBfloat16H512PagedKv", "_qkv_e4m3_o_bfloat16_h512_paged_kv_"),
        ("allToAll", "_alltoall_"),
        ("deep_gemm::transpose_fp32", "_transpose_fp32_"),
        ("_gemma4_routing_kernel", "_routing_kernel_"),
        ("", "_"),
        ("___", "_"),
        ("カーネル", "_カーネル_"),
    ],
)
def test_spelling_becomes_words(spelling: str, expected: str) -> None:
    """Humps, underscores and two-word terms -> lower-case words, terms folded, vendors dropped."""
    assert words(spelling) == expected


@pytest.mark.parametrize(
    ("name", "function", "path"),
    [
        ("void vllm::moe::topk<int, 3>(int*, a::b)", "_topk_", "_vllm_moe_topk_"),
        ("void cutlass::Kernel2<cutlass_80_simt>(cutlass_80_simt::Params)", "_cutlass_80_simt_", "_cutlass_80_simt_"),
        ("void ck_tile::kentry<2, ck_tile::MoeSorting<int>>...", "_moe_sorting_", "_ck_tile_moe_sorting_"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwd<X>>>(X)", "_flashattn_fwd_",
         "_flash_flashattn_fwd_"),
        ("void (anonymous namespace)::f<3>((anonymous namespace)::P)", "_f_", "_f_"),
        ("<unnamed>::f<(int)3>", "_f_", "_f_"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(x)", "_kernel_", "_internal_gemvx_kernel_"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256EEEvPT0_", "_add_rmsnorm_quant_kernel_",
         "_aiter_add_rmsnorm_quant_kernel_"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdE", "_rmsnorm2d_fwd_", "_rmsnorm2d_fwd_"),
        ("_ZN12_GLOBAL__N_13fooEv", "_foo_", "_foo_"),
        ("_Z3fooPf", "_foo_", "_foo_"),
        ("_Z3fooILi3EEvPf", "_foo_", "_foo_"),
        ("_ZN5aiter26mhc_pre_gemm_sqrsum_kernelIDF16bLi2...", "_mhc_pre_gemm_sqrsum_kernel_",
         "_aiter_mhc_pre_gemm_sqrsum_kernel_"),
        ("kernel_cutlass_kernel_modnormRMSNormKernel_object_at__tensorptrbf16", "_modnorm_rmsnorm_kernel_",
         "_modnorm_rmsnorm_kernel_"),
        ("f(int, b<c>) [clone .kd]", "_f_", "_f_"),
        ("f.kd", "_f_", "_f_"),
        ("a::f<b<c", "_f_", "_a_f_"),
    ],
)  # fmt: skip
def test_function_and_path_are_found(name: str, function: str, path: str) -> None:
    """A name in one of the profilers' spellings -> the words of its function, with and without namespaces."""
    got = normalise(name)
    assert (got.function, got.path) == (function, path)


def test_full_view_holds_template_and_parameters() -> None:
    """Template arguments and parameters -> in the full view, not in the path."""
    got = normalise("void f<GroupProblemShape>(int, Params)")
    assert "_group_problem_shape_" in got.full
    assert "_params_" in got.full
    assert "params" not in got.path


def test_only_the_head_of_a_name_is_read() -> None:
    """A word past the limit -> not seen."""
    assert "gemm" not in normalise("f<" + "x" * MAX_CHARS + "_gemm>").full


def test_lexicon_tells_words_wildcards_and_phrases() -> None:
    """A group with a word, a wildcard and a phrase -> each is found, and none across a word boundary."""
    lexicon = Lexicon(["topk|*softmax*|paged_decode|wv_split*"])
    group = 0

    def found(view: str) -> bool:
        return group in lexicon.meets(view) or lexicon.phrase(group, view)

    assert found("_topk_kernel_")
    assert found("_cunnsoftmaxforward_")
    assert found("_a_paged_decode_b_")
    assert found("_wv_splitk_")
    assert not found("_topkernel_")
    assert not found("_soft_max_")
    assert not found("_paged_x_decode_")
    assert not found("_paged_decoder_")
    assert not found("_")


def test_lexicon_forgets_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """More distinct words than the limit -> the kept vocabulary stays bounded and the answers right."""
    monkeypatch.setattr("hta_dsv4.classify.lexicon._MAX_VOCABULARY", 10)
    lexicon = Lexicon(["topk"])
    for i in range(50):
        assert lexicon.meets(f"_w{i}_topk_") == {0}
    assert len(lexicon._met) <= 10


@pytest.mark.parametrize(
    ("view", "held"),
    [("_paged_decode_", True), ("_my_wv_split3_", True), ("_decode_paged_", False), ("_topk_wv_", False)],
)
def test_whether_a_view_holds_any_phrase(view: str, held: bool) -> None:
    """One search for the phrases of all groups -> found exactly where one group's own search finds one."""
    lexicon = Lexicon(["topk|paged_decode", "*softmax*|wv_split*"])
    assert lexicon.any_phrase(view) is held
    assert any(lexicon.phrase(n, view) for n in lexicon.numbers.values()) is held


def test_no_group_has_a_phrase() -> None:
    """Words alone -> no view holds a phrase."""
    assert not Lexicon(["topk", "a|b*"]).any_phrase("_topk_a_")
