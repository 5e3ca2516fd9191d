"""Origin: which part of the model asked for a kernel, and how that is known."""

from __future__ import annotations

import pytest

from hta_dsv4.classify.origin import element
from hta_dsv4.classify.origin_columns import (
    COMPANION,
    FRAME,
    KERNEL,
    METHODS,
    MODULE,
    NONE,
    OP,
    ORIGINS,
    SCOPE,
)
from hta_dsv4.classify.origins_file import default_origins, load_origins
from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.errors import RulesError
from hta_dsv4.runs.loading import load
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.reader import read_trace
from tests.builders import CPU_PID, KinetoTrace
from tests.frames import kernel, make_trace

RULES = default_origins()
SGLANG = "/sgl-workspace/sglang/python/sglang/srt/"
MODEL, BACKEND = SGLANG + "models/deepseek_v4.py", SGLANG + "layers/attention/deepseek_v4_backend.py"
ROW, COMPRESSOR = "nn.Module: RowParallelLinear_9", "nn.Module: Compressor_5"
LAYER = [
    "nn.Module: DeepseekV4Model_0",
    MODEL + "(1884): forward",
    "nn.Module: DeepseekV4DecoderLayer_4",
]
MQA = [*LAYER, "nn.Module: MQALayer_4"]
VLLM = "/usr/lib/python3/site-packages/vllm/model_executor/layers/"
VLLM_MLA = [
    "nn.Module: DeepseekV4DecoderLayer_7",
    "nn.Module: DeepseekV4Attention_7",
    "nn.Module: DeepseekV4MultiHeadLatentAttentionWrapper_7",
]


@pytest.mark.parametrize(
    ("path", "op", "origin", "method"),
    [
        (["ProfilerStep#3", "layer.7/indexer/logits"], "aten::bmm", "indexer", SCOPE),
        (["layer.7/indexer/compressor"], "aten::mm", "indexer", SCOPE),
        (["layer.7/compressor"], "aten::mm", "compressor", SCOPE),
        (["layer.7/mhc_pre/attention"], "aten::mm", "mhc_pre", SCOPE),
        (["layer.7/mhc_post/moe"], "aten::add", "mhc_post", SCOPE),
        (["layer.7/norm/moe"], "aten::rms_norm", "norm", SCOPE),
        (["layer.7/moe/shared_expert"], "aten::mm", "shared_expert", SCOPE),
        (["layer.7/attention/kv_write"], "aten::index_put_", "kv_cache", SCOPE),
        (["head/lm_head"], "aten::mm", "lm_head", SCOPE),
        ([*MQA, "nn.Module: C4Indexer_2", COMPRESSOR], "aten::mm", "indexer", MODULE),
        ([*MQA, BACKEND + "(900): forward_core_compressor", COMPRESSOR], "aten::mm", "compressor", MODULE),
        ([*LAYER, MODEL + "(700): hc_pre"], "aten::linear", "mhc_pre", FRAME),
        ([*MQA, MODEL + "(400): _compute_q_b", "nn.Module: Linear_9"], None, "qkv_proj", FRAME),
        ([*MQA, ROW], "aten::mm", "o_proj", MODULE),
        ([*MQA, ROW, SGLANG + "distributed/communication_op.py(1): f"], None, "comm", FRAME),
        ([*MQA, BACKEND + "(1100): forward"], None, "attention", FRAME),
        ([*LAYER, "nn.Module: DeepseekV2MoE_4", "nn.Module: DeepseekV2MLP_4", ROW], None, "shared_expert", MODULE),
        ([*LAYER, "nn.Module: DeepseekV2MoE_4", "nn.Module: MoEGate_4"], "aten::mm", "router", MODULE),
        ([*LAYER, "nn.Module: RMSNorm_12"], None, "norm", MODULE),
        ([*VLLM_MLA, VLLM + "deepseek_v4_attention.py(310): indexer_weights_proj"], "aten::mm", "indexer", FRAME),
        ([*VLLM_MLA, VLLM + "deepseek_v4_attention.py(300): compressor_kv_score"], "aten::mm", "compressor", FRAME),
        ([], "vllm::mhc_pre", "mhc_pre", OP),
        ([], "c10d::allreduce_", "comm", OP),
        ([], "vllm::deepseek_v4_attention", "attention", OP),
        (["nn.Module: DeepseekV4DecoderLayer_7"], "aten::add", "unknown", NONE),
        (["step[DECODE bs=32]"], "aten::copy_", "unknown", NONE),
        ([], None, "unknown", NONE),
    ],
)  # fmt: skip
def test_what_stands_around_a_launch_tells_its_origin(path, op, origin, method):
    """Scopes, modules, functions or op of the engines and the bundled step -> the origin and how it is known."""
    found = RULES.of_path(path, op)
    assert (found.origin, found.method) == (origin, method)
    assert (found.confidence == 0) == (origin == "unknown")


def test_bundled_rules_hold_their_own_examples():
    """Every example and counter-example -> as stated; every origin is listed."""
    assert RULES.failures() == []
    assert {r.origin for r in RULES.rules} | set(RULES.kernel_roles.values()) <= set(ORIGINS)
    assert [r.priority for r in RULES.rules] == sorted((r.priority for r in RULES.rules), reverse=True)


def test_every_scope_of_the_bundled_step_has_an_origin():
    """One tiny decode step on the CPU under the profiler -> each of its ranges is some part's, the right one."""
    torch = pytest.importorskip("torch")
    from hta_dsv4.capture.config import StepShape
    from hta_dsv4.capture.switches import Switches
    from hta_dsv4.capture.workload import DecodeStep

    step = DecodeStep(
        "tiny",
        StepShape(batch=1, context=300, max_context=512),
        Switches(attention="reference", moe="torch", gemm="bf16", glue="torch"),
        device="cpu",
    )
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    ops = {"aten", "prims", "cuda"}
    scopes = {
        e.name
        for e in profile.events()
        if e.name.split("::")[0] not in ops
        and ("/" in e.name or e.name in ("metadata", "embedding", "sampling"))
    }
    assert len(scopes) > 30
    origins = {s: RULES.of_path([s]).origin for s in scopes}
    assert [s for s, o in origins.items() if o == "unknown"] == []
    assert {o for s, o in origins.items() if "/indexer/" in s} == {"indexer"}
    assert {o for s, o in origins.items() if "/mhc_pre/" in s} == {"mhc_pre"}


def test_a_kernel_of_one_part_alone_tells_by_its_role_and_says_so():
    """No launch at all -> a paged-logits kernel is the indexer's by inference; a copy stays unknown."""
    trace = make_trace(
        [
            kernel("_fp8_paged_mqa_logits_kernel", 0, 10),
            kernel("void at::native::elementwise_kernel<128, 2, direct_copy>", 20, 10),
        ]
    )
    table = RULES.classify_frame(trace, default_rules().classify_frame(trace.activities))
    assert table[col.ORIGIN].tolist() == ["indexer", "unknown"]
    assert table[col.ORIGIN_METHOD].tolist() == [KERNEL, NONE]
    assert table[col.ORIGIN_CONFIDENCE].tolist() == pytest.approx([0.7, 0.0])
    assert COMPANION in METHODS


def test_what_stands_around_a_graph_replay_says_nothing_of_its_kernels():
    """A replay launched inside a range called moe -> its kernels are not the MoE's; an eager one there is."""
    trace = make_trace(
        [
            kernel("a", 0, 10, launch=0, **{col.LAUNCH_NAME: "cudaGraphLaunch", col.SCOPE: "layer.0/moe"}),
            kernel("a", 20, 10, launch=5, **{col.SCOPE: "layer.0/moe"}),
        ]
    )
    table = RULES.classify_frame(trace, trace.activities)
    assert table[col.ORIGIN].tolist() == ["unknown", "moe"]


def test_python_functions_of_a_trace_with_stacks_are_read(tmp_path):
    """Launch inside modules and a function of the model -> the function decides, through the reader."""
    made = KinetoTrace()
    made.add("python_function", LAYER[2], 0, 100, CPU_PID, CPU_PID)
    made.add("python_function", MODEL + "(700): hc_pre", 5, 60, CPU_PID, CPU_PID)
    made.eager("gemm", 10, at=10, op="aten::mm")
    trace = read_trace(made.write(tmp_path / "stacks.json"), python_frames=True)
    table = RULES.classify_frame(trace, trace.activities)
    assert table[col.ORIGIN].tolist() == ["mhc_pre"]
    assert table[col.ORIGIN_METHOD].tolist() == [FRAME]


@pytest.mark.parametrize(
    ("replayed", "stack", "remedy"),
    [(True, 1, "--companion"), (False, 1, "--frames"), (False, 0, "record_function")],
)
def test_the_remedy_for_unknown_origins_is_one_that_can_help(tmp_path, replayed, stack, remedy):
    """Kernels of no origin in a replay, beside unread stacks, without stacks -> companion, frames, names."""
    made = KinetoTrace(with_stack=stack)
    for at in (100, 200):
        if replayed:
            made.replay(["gemm_a", "gemm_b"], at=at, dur=5)
        else:
            made.eager("gemm_a", 10, at=at, op="aten::mm")
    notes = load(made.write(tmp_path / "x.json")).shares("origin").notes
    assert "have no origin" in notes[-1]
    assert remedy in notes[-1]


def test_elements_are_read_without_numbers_and_install_paths():
    """Module and frame names -> class, and file from the package on with its function."""
    assert element("nn.Module: C4Indexer_7") == ("module", "C4Indexer")
    assert element(MODEL + "(1884): hc_pre") == (
        "frame",
        "sglang/srt/models/deepseek_v4.py: hc_pre",
    )
    assert element("layer.7/moe") == ("scope", "layer.7/moe")


RULE = """[[rule]]
name='x'
origin='moe'
comment='c'
priority=1
pattern='%s'
examples=['%s']
counter_examples=['%s']
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[rule]\n", "not valid TOML"),
        ("[[rule]]\nname='x'\n", "needs origin"),
        (RULE % ("(", "a", "b"), "regular expression"),
        (RULE % ("a", "b", "c"), "'b' is won by"),
        (RULE % ("a", "a", "ba"), "should not"),
        ("colour='red'", "colour"),
    ],
)  # fmt: skip
def test_a_broken_rules_file_is_one_line_with_the_remedy(tmp_path, text, says):
    """Syntax, missing key, bad pattern, failing example -> RulesError naming the file."""
    path = tmp_path / "origins.toml"
    path.write_text(text)
    with pytest.raises(RulesError) as error:
        load_origins(path)
    assert says in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
