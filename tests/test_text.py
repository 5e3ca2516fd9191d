"""Tables as text: numbers whole at any width, names shortened with sense, sentences never cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hta_dsv4.present.grid import Grid
from hta_dsv4.present.kernel_names import essence, shorten, telling
from hta_dsv4.present.text import PIPED, console, markdown, print_grid
from hta_dsv4.shipped import traces
from hta_dsv4.trace.activities import NAME
from hta_dsv4.trace.reader import read_trace

FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
    "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4>"
    "(int, std::array<char*, 2ul>)"
)


def printed(grid: Grid, width: int, full: bool = False) -> list[str]:
    """The lines that a grid prints as at this width."""
    out = io.StringIO()
    print_grid(grid, Console(file=out, width=width), full=full)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 60, 120, 400])
def test_numbers_are_whole_at_any_width(width):
    """A long name, six numbers, 20 to 400 columns -> each whole, behind its row's name; with full all on one line."""
    numbers = tuple(f"{10**i * 1.001:,.3f}" for i in range(3, 9))
    grid = Grid("t", ("kernel", *"abcdef"), ((FILL, *numbers), ("short", *numbers)), (("sum", *numbers),))
    lines = printed(grid, width)
    for name in ("short", "sum"):
        assert all(any(line.startswith(name) and line.split().count(n) for line in lines) for n in numbers)
    assert sum(all(n in line for n in numbers) for line in printed(grid, width, full=True)) == 3


def test_names_fit_the_width_and_full_leaves_them_whole():
    """A name of 900 characters at 100 columns -> no line beyond 100; with full the whole name on one line."""
    name = "_kernel_" + "x" * 884 + "_tail_42"
    grid = Grid("t", ("kernel", "us"), ((name, "1,234.567"),))
    assert max(map(len, printed(grid, 100))) <= 100
    assert any("_tail_42" in line for line in printed(grid, 100))
    assert any(name in line for line in printed(grid, 100, full=True))


def test_sentences_are_never_cut():
    """A grid of prose at 40 columns -> the sentence is there, whole."""
    said = (
        "5 by ProfilerStep (a sentence that goes on for longer than the line is wide, with no end in sight)"
    )
    assert any(
        said in line for line in printed(Grid("t", ("", ""), (("steps", said),), left=2, prose=True), 40)
    )
    found = Grid("t", ("", "finding", "saves"), (("1", said, "12.5"),), left=2, prose=True)
    assert max(map(len, lines := printed(found, 60))) <= 60  # numbers behind it would be far off
    assert (
        " ".join(w for line in lines for w in line.split() if w != "12.5").count(said.split(" (")[1][:-1])
        == 1
    )


def test_lead_title_and_notes_are_one_line_each():
    """A headline longer than the console -> one line, before the table; a grid without rows prints no table."""
    lead = "sum " + "1,000.000 " * 30
    lines = printed(Grid("title", (), (), notes=("n",), left=0, lead=(lead,)), 40)
    assert [line.strip() for line in lines] == ["title", lead.strip(), "note: n"]
    assert lead.strip() in markdown(Grid("title", (), (), left=0, lead=(lead,)))
    assert "|" not in markdown(Grid("title", (), (), left=0))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        (FILL, "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul> >"),
        (
            COPY,
            "unrolled_elementwise_kernel<direct_copy_kernel_cuda(TensorIteratorBase&)::float, array<char*, 2ul>, 4>",
        ),
        ("_sparse_mla_split_k_kernel", "_sparse_mla_split_k_kernel"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("none: no marker (and a reason)", "none: no marker (and a reason)"),
        ("void f(int)", "f"),
        ("broken<(", "broken<("),
    ],
)
def test_what_says_nothing_is_left_out_of_cpp_names(name, kept):
    """Return type, PyTorch's namespaces, parameters and empty lambdas go; what is no C++ name stays."""
    assert essence(name) == kept


def test_short_names_stay_as_written():
    """A name that fits -> untouched; a longer one keeps both ends."""
    assert shorten("void f<int>(int)", 40) == "void f<int>(int)"
    cut = shorten("a" * 50 + "b" * 50, 21)
    assert len(cut) == 21
    assert cut.startswith("aaa")
    assert cut.endswith("bbb")


def test_the_kernels_of_a_real_trace_stay_apart():
    """Every kernel of two shipped traces in 60 characters -> nine of ten stay distinct, none too long."""
    names = {
        name
        for v in ("original", "cuda_graph_eager")
        for name in read_trace(traces()[v], cpu=False).activities[NAME].cat.categories
    }
    cut = {shorten(str(n), 60) for n in names}
    assert max(map(len, cut)) <= 60
    assert len(cut) > 0.9 * len(names) > 90


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        (
            "elementwise_kernel<128, 2, gpu_kernel_impl_nocast<BinaryFunctor<float, float, MulFunctor<float> > > >",
            "elementwise_kernel<… MulFunctor<float> …>",
        ),
        (essence(COPY), "unrolled_elementwise_kernel<… direct_copy_kernel_cuda<float> …>"),
        ("_sparse_mla_split_k_kernel", "_sparse_mla_split_k_kernel"),
        ("gemm<128, 64, 32>", "gemm<128, 64, 32>"),
    ],
)
def test_a_carrier_is_named_by_what_it_applies(name, kept):
    """PyTorch's elementwise carriers -> function and functor; other names stay."""
    assert telling(name) == kept
    assert (
        telling("vectorized_elementwise_kernel<4, FillFunctor<float>, x>", 32)
        == "vectori…<… FillFunctor<float> …>"
    )


def test_a_pipe_is_laid_out_for_columns_or_200(monkeypatch):
    """Piped: COLUMNS where it is a number, else 200."""
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "137")
    assert console().width == 137
    monkeypatch.setenv("COLUMNS", "wide")
    assert console().width == PIPED
    monkeypatch.delenv("COLUMNS")
    assert console().width == PIPED
