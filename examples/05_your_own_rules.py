"""Classify kernels of your own with rules of your own, before the bundled ones.

python examples/05_your_own_rules.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import hta_dsv4
from hta_dsv4.classify.rules_file import load_rules

RULES = """
[[rule]]
name = "my-topk"
bucket = "indexer"
role = "indexer_topk"
priority = 1100
words = ["radix_select"]
comment = "Our top-k of the indexer; its name says nothing of it."
examples = ["my_radix_select_kernel<float>"]
counter_examples = ["radix_sort_kernel"]
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.toml"
        path.write_text(RULES)
        rules = load_rules(path)
    found = rules.explain("my_radix_select_kernel<float>")
    print(f"{found.name}: {found.bucket}, {found.role}, by rule {found.rule}")
    run = hta_dsv4.load(hta_dsv4.traces()["h200_probe"], rules=rules)
    print(run.shares(by="bucket").table[["bucket", "share"]].round(3).to_string(index=False))


if __name__ == "__main__":
    main()
