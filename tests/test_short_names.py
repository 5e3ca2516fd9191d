"""Kernels in sentences: the function alone, so that a note is read and not scrolled."""

from __future__ import annotations

import pandas as pd
import pytest

import hta_dsv4
from hta_dsv4.analysis.phases import phase_notes
from hta_dsv4.classify.names import IN_A_SENTENCE, short
from tests.conftest import cli


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::Params<float>, int)",
            "splitKreduce_kernel",
        ),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(P<int>)", "kernel"),
        ("void (anonymous namespace)::softmax_warp<float>(float*)", "softmax_warp"),
        ("void at::native::(anonymous namespace)::cunn_SoftMax<4>(float*)", "cunn_SoftMax"),
        ("_moe_fp4_gemm_w2_kernel", "_moe_fp4_gemm_w2_kernel"),
        ("<<<>>>", "<<<>>>"),
    ],
)
def test_a_name_in_a_sentence_is_its_function(name, said):
    """C++ with namespaces, return type, anonymous namespace; a plain name; none -> the function, or what there is."""
    assert short(name) == said


def test_no_name_is_long_in_a_sentence():
    """A name of 400 letters -> cut, and seen to be."""
    assert len(short("k" * 400)) == IN_A_SENTENCE
    assert short("k" * 400).endswith("…")


def test_a_diff_of_cublas_kernels_has_no_endless_note():
    """Original and mma, whose splitKreduce is 0.0002 % early -> no word of it; every note but a table's fits 300."""
    text = cli("diff", *(str(hta_dsv4.traces()[n]) for n in ("original", "split_k"))).stdout
    notes = [line for line in text.splitlines() if line.startswith("note: ")]
    assert max(map(len, notes)) <= 300
    assert "cublasLt::" not in "".join(notes)
    assert not any("early: original" in n for n in notes)
    assert any("early: split_k 491.4 us a step" in n for n in notes)


def test_a_kernel_of_two_kinds_of_steps_is_named_by_its_function():
    """A templated kernel long in one of two steps -> its function in the sentence, not its signature."""
    name = "void library::close_group<32, float>(float const*, int)"
    mixed, quick = (pd.DataFrame({name: t}) for t in ([100_000, 900_000], [100_000, 100_000]))
    (note,) = phase_notes([("a", mixed), ("b", quick)])
    assert note.startswith("close_group takes about")
