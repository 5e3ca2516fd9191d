"""Rules files of users: layers, overrides and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hta_dsv4.classify.rules_file import default_rules, load_rules
from hta_dsv4.errors import RulesError

GOOD = """
[[rule]]
name = "mine"
bucket = "attention"
role = "attention_core"
words = ["zebra", "decode|prefill"]
comment = "our own attention"
examples = ["_zebra_decode_kernel"]
counter_examples = ["_zebra_sort_kernel"]
"""


def write(folder: Path, text: str, name: str = "my.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_user_rule_stands_above_bundled_ones(tmp_path: Path) -> None:
    """A user's rule without a priority -> wins over the bundled rule, which stays a candidate."""
    text = GOOD.replace("zebra", "moe").replace("decode|prefill", "sum")
    rules = load_rules(write(tmp_path, text.replace("_decode_", "_sum_")))
    explained = rules.explain("_moe_sum_reduce_kernel")
    assert (explained.rule, explained.bucket) == ("mine", "attention")
    assert "moe-combine" in {c.rule for c in explained.candidates}
    assert default_rules().classify("_moe_sum_reduce_kernel").rule == "moe-combine"


def test_user_rule_with_low_priority_only_fills_gaps(tmp_path: Path) -> None:
    """A catch-all of priority 1 -> takes unknown names, leaves the known ones alone."""
    text = GOOD.replace('words = ["zebra", "decode|prefill"]', 'regex = "."\npriority = 1')
    text = text.replace("_zebra_sort_kernel", "_hc_head_kernel")
    rules = load_rules(write(tmp_path, text))
    assert rules.classify("mystery").rule == "mine"
    assert rules.classify("_hc_head_kernel").bucket == "mhc"


def test_later_file_replaces_a_rule_of_the_same_name(tmp_path: Path) -> None:
    """Two files with a rule of one name -> the later one's bucket."""
    one = write(tmp_path, GOOD, "one.toml")
    two = write(tmp_path, GOOD.replace('bucket = "attention"', 'bucket = "indexer"'), "two.toml")
    assert load_rules(one, two).classify("_zebra_decode_kernel").bucket == "indexer"
    assert load_rules(two, one).classify("_zebra_decode_kernel").bucket == "attention"


def test_bundled_rule_can_be_replaced_or_disabled(tmp_path: Path) -> None:
    """A bundled name in a user's file, or under disable -> the bundled rule no longer speaks."""
    path = write(tmp_path, 'disable = ["mhc-head"]\n')
    assert load_rules(path).classify("_hc_head_kernel").rule != "mhc-head"
    text = GOOD.replace('"mine"', '"mhc-head"')
    assert load_rules(write(tmp_path, text)).classify("_zebra_prefill").rule == "mhc-head"


def test_equal_priority_goes_to_the_later_layer(tmp_path: Path) -> None:
    """A user's rule at the bundled rule's own priority -> the user's wins."""
    priority = next(r.priority for r in default_rules().rules if r.name == "mhc-head")
    text = GOOD.replace(
        'words = ["zebra", "decode|prefill"]', f'words = ["hc", "head"]\npriority = {priority}'
    )
    rules = load_rules(write(tmp_path, text.replace("_zebra_decode_kernel", "_hc_head_kernel")))
    assert rules.classify("_hc_head_kernel").rule == "mine"


def test_engine_then_user(tmp_path: Path) -> None:
    """An engine's layer with a user's file on top -> bundled, engine and user rules all speak."""
    rules = load_rules(write(tmp_path, GOOD), engine="vllm")
    assert rules.classify("_zebra_decode_kernel").rule == "mine"
    assert rules.classify("batched_triton_kernel").bucket == "moe_other"
    assert rules.classify("_hc_head_kernel").bucket == "mhc"


def test_conflict_within_one_priority_is_reported(tmp_path: Path) -> None:
    """Two rules of one file and priority that disagree -> a conflict naming both, the earlier one winning."""
    other = GOOD.replace('"mine"', '"other"').replace('bucket = "attention"', 'bucket = "indexer"')
    other = other.replace("_zebra_decode_kernel", "_zebra_prefill").replace(
        '"zebra", "decode|prefill"', '"zebra"'
    )
    other = other.replace('["_zebra_prefill"]', '["_zebra_sort"]').replace(
        "_zebra_sort_kernel", "_zebra_prefill"
    )
    report = load_rules(write(tmp_path, GOOD + other)).report({"_zebra_decode_kernel": 5})
    assert [(c.rules, c.buckets) for c in report.conflicts] == [(("mine", "other"), ("attention", "indexer"))]


MISTAKES = {
    "syntax": ("[[rule]\n", "not valid TOML"),
    "nested without end": ("disable = " + "[" * 5000, "nested too deeply"),
    "unknown bucket": (
        GOOD.replace('"attention"', '"atention"'),
        "unknown bucket 'atention'; use one of attention",
    ),
    "no name": (GOOD.replace('name = "mine"\n', ""), "rule 1: has no name"),
    "twice": (GOOD + GOOD, "there twice"),
    "bad regex": (GOOD.replace("comment", 'regex = "("\ncomment', 1), "bad regex '('"),
    "nested repeat": (GOOD.replace("comment", 'regex = "(a+)+b"\ncomment', 1), "exponential time"),
    "nothing to match by": (GOOD.replace('words = ["zebra", "decode|prefill"]\n', ""), "needs words"),
    "empty alternative": (GOOD.replace("decode|prefill", "decode|"), "matches anything"),
    "bare star": (GOOD.replace("decode|prefill", "*"), "matches anything"),
    "words as text": (GOOD.replace('["zebra", "decode|prefill"]', '"zebra"'), "words must be a list"),
    "priority as text": (
        GOOD.replace("comment", 'priority = "high"\ncomment', 1),
        "priority must be a whole number",
    ),
    "unknown view": (
        GOOD.replace("comment", 'where = "name"\ncomment', 1),
        "use one of function, path, full",
    ),
    "unknown key": (GOOD.replace("comment", 'pattern = "x"\ncomment', 1), "unknown key 'pattern'"),
    "no comment": (GOOD.replace('comment = "our own attention"\n', ""), "needs comment"),
    "no examples": (
        GOOD.replace('examples = ["_zebra_decode_kernel"]\n', "", 1),
        "at least one name in examples",
    ),
    "no counter-examples": (
        GOOD.replace('counter_examples = ["_zebra_sort_kernel"]', ""),
        "in counter_examples",
    ),
    "example fails": (GOOD.replace('"_zebra_decode_kernel"', '"_zebra_walk"'), "is won by 'none'"),
    "counter-example fails": (GOOD.replace("_zebra_sort_kernel", "_zebra_prefill"), "won by this very rule"),
    "unknown top key": ('rules = "x"\n', "unknown key 'rules'"),
    "rule is a table": ("[rule]\nname = 'x'\n", "write [[rule]]"),
    "rules of numbers": ("rule = [1]\n", "write [[rule]]"),
    "disable unknown": ('disable = ["no-such"]\n', "disable names 'no-such'"),
    "disable as text": ('disable = "mhc-head"\n', "disable must be a list"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_line_with_file_and_remedy(tmp_path: Path, mistake: str) -> None:
    """A mistake in a rules file -> RulesError of one line that names the file and what is wrong."""
    text, expected = MISTAKES[mistake]
    path = write(tmp_path, text)
    with pytest.raises(RulesError) as caught:
        load_rules(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert "\n" not in message
    if "mine" in text and mistake not in ("syntax", "no name"):
        assert "'mine'" in message


def test_missing_folder_and_binary_files_are_said(tmp_path: Path) -> None:
    """A missing path, a folder, bytes that are no UTF-8 -> RulesError naming the path."""
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, expected in (
        (tmp_path / "no.toml", "no such rules file"),
        (tmp_path, "cannot be read"),
        (binary, "UTF-8"),
    ):
        with pytest.raises(RulesError, match=expected) as caught:
            load_rules(path)
        assert str(path) in str(caught.value)


def test_unknown_engine_names_the_known_ones() -> None:
    """An engine that has no layer -> RulesError listing those that have."""
    with pytest.raises(RulesError, match="sglang, vllm"):
        load_rules(engine="acme")
