"""Results for others: a report in one HTML file, a pull-request comment, a figure, a trace for Perfetto.

python examples/07_report_and_perfetto.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import hta_dsv4
from hta_dsv4.present import figures
from hta_dsv4.present.captures import capture_files
from hta_dsv4.present.perfetto import gpus
from hta_dsv4.present.perfetto_file import perfetto_bytes
from hta_dsv4.present.report import build
from hta_dsv4.present.report_html import report_html
from hta_dsv4.present.report_md import report_md


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shipped = hta_dsv4.traces()
    runs = [hta_dsv4.load(shipped[name]) for name in ("mhc_fused", "cuda_graph")]
    report = build(runs, [capture for run in runs for capture in capture_files(run)])
    (folder / "report.html").write_text(report_html(report), encoding="utf-8")
    (folder / "comment.md").write_text(report_md(report), encoding="utf-8")
    figures.share_bars([r.shares() for r in runs], theme="dark").write_html(folder / "shares.html")
    (folder / "cuda_graph.pftrace").write_bytes(perfetto_bytes(gpus(runs[-1])))
    for path in sorted(folder.iterdir()):
        print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/example"))
