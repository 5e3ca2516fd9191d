"""Shares by step, layer and scope: what a row is, its order, what it adds up to, and what a trace lacks for it."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import hta_dsv4
from hta_dsv4.analysis.collective_layers import layer_of_scope
from hta_dsv4.analysis.places import in_order, layer_of, path_of
from hta_dsv4.analysis.shares import rank_shares
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.cross_grid import cross_grid
from hta_dsv4.present.shares_grid import shares_grid
from hta_dsv4.trace import activities as col
from tests.builders import CPU_PID, KinetoTrace
from tests.conftest import cli
from tests.variants import table_of


@pytest.mark.parametrize(
    ("scope", "layer", "path"),
    [
        ("ProfilerStep#2 > layer.12/mhc_pre/attention", "12", "layer.*/mhc_pre/attention"),
        ("step[DECODE bs=16] > model.layers.3 > attn", "3", "model.layers.* > attn"),
        ("nn.Module: DeepseekV4DecoderLayer_7", "7", "nn.Module: DeepseekV4DecoderLayer_*"),
        ("execute_context_0(0)_generation_32(32)", None, "unknown"),
        ("metadata", None, "metadata"),
        ("player.3/x", None, "player.3/x"),
        ("layer.00003/x", "3", "layer.*/x"),
        ("layer.000", "0", "layer.*"),
        ("layer.1_000", None, "layer.1_000"),
        ("layer.12_0", None, "layer.12_0"),
        ("layers_3_attn", "3", "layers_*_attn"),
        ("layer.\u0661\u0662", None, "layer.\u0661\u0662"),
        ("layer.1\u0662", None, "layer.1\u0662"),
    ],
)
def test_a_scope_names_its_layer_and_a_path_without_steps(scope, layer, path):
    """Scopes of our capture, a server's modules, markers alone -> the layer's number, one path for all layers."""
    assert (layer_of(scope), path_of(scope)) == (layer, path)


def test_layers_are_ordered_as_numbers_of_any_size():
    """Layers beyond 64 bits, of 5,000 digits, unknown and none -> by number, what has none last."""
    labels = ["unknown", "9" * 5000, "10", "9", "999999999999999999999", "none", "0"]
    order = in_order(pd.Series(labels), "layer")
    said = [labels[i] for i in order.sort_values(kind="stable").index]
    assert said == ["0", "9", "10", "999999999999999999999", "9" * 5000, "unknown", "none"]
    assert layer_of_scope("layer." + "9" * 5000) == layer_of_scope("layer.\u0663") == (None, None)


def test_rows_by_step_are_the_steps_own_and_in_order():
    """Steps of 30, 10 and 20 us -> rows 0, 1, 2 with these times, not divided by the number of steps."""
    table, steps = table_of([[("a", 30_000)], [("a", 10_000)], [("a", 15_000), ("b", 5_000)]])
    table[col.STEP] = steps.of_activity
    rows = rank_shares(table, steps, 0, "step").table
    assert rows["step"].tolist() == ["0", "1", "2"]
    assert rows["time_ns_per_step"].tolist() == rows["time_ns"].tolist() == [30_000, 10_000, 20_000]
    assert rows["launches_per_step"].tolist() == [1, 1, 2]


def test_rows_by_layer_are_in_order_of_the_model():
    """Layers 10, 2 and none, the first with most time -> 2, 10, none; per step, and together the sum."""
    scopes = ["layer.10/a", "layer.2/a", "head", "layer.2/b"]
    table, steps = table_of([[("a", 40), ("a", 10), ("h", 6), ("b", 4)]] * 2, scopes=scopes)
    rows = rank_shares(table, steps, 0, "layer").table
    assert rows["layer"].tolist() == ["2", "10", "none"]
    assert rows["time_ns_per_step"].tolist() == [14, 40, 6]
    by_scope = rank_shares(table, steps, 0, "scope").table
    assert by_scope.set_index("scope")["time_ns"].to_dict() == {"layer.*/a": 100, "head": 12, "layer.*/b": 8}


def test_layers_under_graph_replay_come_from_the_companion():
    """A graph trace alone -> an error with the remedy; with its eager companion -> all 43 layers."""
    shipped = hta_dsv4.traces()
    with pytest.raises(HtaDsv4Error, match=r"no scope of the trace names a layer.*--companion"):
        hta_dsv4.load(shipped["cuda_graph"]).shares("layer")
    found = hta_dsv4.load(shipped["cuda_graph"], companion=shipped["cuda_graph_eager"]).shares("layer")
    assert {str(n) for n in range(43)} < set(found.table["layer"])
    assert found.table["time_ns"].sum() == found.median_rank.extent.sum_ns


def test_steps_of_a_shipped_trace_show_which_emit_compressed_keys():
    """moe_tuned by step and kernel -> two of eight steps hold the long compressor launches."""
    table = hta_dsv4.load(hta_dsv4.traces()["moe_tuned"]).shares("step,kernel").table
    compress = table[table["kernel"].str.contains("compress_norm_rope")].set_index("step")["time_ns"]
    assert len(compress) == 8
    assert (compress > 1_000_000).sum() == 2
    assert compress[compress < 1_000_000].max() < 200_000


def test_a_cross_table_of_layers_is_in_us_and_adds_up():
    """Layer by bucket -> us per step in order of layers, the last row what they add up to."""
    found = hta_dsv4.load(hta_dsv4.traces()["mhc_fused"]).shares("layer,bucket")
    made = cross_grid(found)
    assert made.title.endswith("us/step")
    assert [r[0] for r in made.rows[:3]] == ["0", "1", "2"]
    sums = [float(r[1].replace(",", "")) for r in made.rows]
    assert sum(sums) == pytest.approx(float(made.footer[0][1].replace(",", "")), abs=0.001 * len(sums))


def test_the_rows_shown_are_the_largest_in_order_and_the_rest_is_their_mean():
    """Eight steps, two of them long, --top 2 -> these two in order; the others as their mean."""
    found = hta_dsv4.load(hta_dsv4.traces()["moe_tuned"]).shares("step")
    made = shares_grid(found, 2)
    assert [r[0] for r in made.rows] == ["2", "6", "(6 more, mean)"]
    rest = found.table[~found.table["step"].isin(["2", "6"])]["time_ns"]
    assert float(made.rows[2][1].replace(",", "")) == pytest.approx(rest.mean() / 1e3, abs=0.001)


def test_diff_puts_layers_side_by_side_and_refuses_steps():
    """Diff --by layer -> layers in the table, the cause by bucket; --by step -> one line with what to ask instead."""
    document = json.loads(cli("diff", "indexer_triton", "mhc_fused", "--by", "layer", "--json").stdout)
    assert document["by"] == ["layer"]
    assert document["explanation"]["pairs"][0]["by"] == ["bucket"]
    refused = cli("diff", "cuda_graph", "moe_tuned", "--by", "step")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "hta-dsv4 shares" in refused.stderr


def test_the_command_line_knows_them_and_others_refuse():
    """Keys step,bucket -> JSON rows in order; fill --by step -> one line that names its keys."""
    document = json.loads(cli("shares", "moe_tuned", "--by", "step,bucket", "--json").stdout)
    rows = document["variants"][0]["rows"]
    assert [int(r["step"]) for r in rows] == sorted(int(r["step"]) for r in rows)
    assert sum(r["time_ns"] for r in rows) == document["variants"][0]["sum_ns"]
    refused = cli("fill", "moe_tuned", "--by", "step")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "bucket, role, origin, kernel" in refused.stderr


def test_modules_recorded_with_stacks_name_layers(tmp_path):
    """A server's decoder layers as module calls -> layers with --frames; without, an error that says so."""
    trace = KinetoTrace()
    trace.step(1, 90, 400)
    for layer, at in ((0, 100), (1, 200)):
        name = f"nn.Module: DeepseekV4DecoderLayer_{layer}"
        trace.add("python_function", name, at - 5, 60, CPU_PID, CPU_PID, **{"Python id": layer + 1})
        trace.eager("gemm", 10 + layer, at=at)
    path = trace.write(tmp_path / "stacks.json")
    table = hta_dsv4.load(path, frames=True).shares("layer").table
    assert table.set_index("layer")["time_ns"].to_dict() == {"0": 10_000, "1": 11_000}
    with pytest.raises(HtaDsv4Error, match="--frames"):
        hta_dsv4.load(path).shares("layer")
