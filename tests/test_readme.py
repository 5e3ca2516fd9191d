"""README: its Python runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import hta_dsv4

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_python_with_shipped_traces_for_its_paths_runs_to_a_result_on_each_line():
    """The README's code block, its file names replaced by shipped traces -> every line gives something."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    shipped = hta_dsv4.traces()
    for name, trace in (
        ("decode.pt.trace.json.gz", "mhc_fused"), ("a.json.gz", "cuda_graph_eager"), ("b.json.gz", "cuda_graph"),
    ):  # fmt: skip
        assert f'"{name}"' in code
        code = code.replace(f'"{name}"', repr(str(shipped[trace])))
    names: dict[str, object] = {}
    lines = [line for line in code.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(("import ", "run = ")):
            exec(line, names)
        else:
            assert len(eval(line, names)) > 0, line
