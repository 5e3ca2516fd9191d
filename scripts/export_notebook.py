"""Run a notebook and write it as one HTML file that works without a network.

    python scripts/export_notebook.py notebooks/kernel_share.ipynb build/kernel_share.html

nbconvert's usual page fetches MathJax and RequireJS from the network; this one is its bare body in a page of our own,
with Plotly's script inside.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import sys
from pathlib import Path

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
body {{ max-width: 1100px; margin: 0 auto; padding: 12px 18px 48px; color: #1f2328; background: #fff;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }}
h1, h2 {{ line-height: 1.25; }}
h2 {{ margin-top: 2em; border-top: 1px solid #d9dde3; padding-top: .5em; }}
.anchor-link, .prompt, .jp-InputPrompt, .jp-OutputPrompt {{ display: none; }}
.highlight pre, .output_text pre {{ background: #f5f7fa; padding: 8px 12px; border-radius: 4px; overflow-x: auto;
  font-size: 12.5px; }}
table {{ border-collapse: collapse; font-size: 12px; }}
td, th {{ padding: 2px 8px; border-bottom: 1px solid #e5e8ec; text-align: right; }}
.output_html, .output_area, .jp-OutputArea-output {{ overflow-x: auto; }}
{pygments}
</style>
</head>
<body>
{body}
</body>
</html>
"""

_REMOTE_SCRIPT = re.compile(r'<script[^>]*\bsrc="https?://[^"]*"[^>]*>\s*</script>')


def run_notebook(path: Path, timeout: int = 300) -> object:
    """Execute a notebook in the folder it lies in.

    Args:
        path: the notebook.
        timeout: seconds one cell may take.

    Returns:
        The executed notebook (nbformat's node); the file is not changed.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    # the renderer that puts plotly.js into the page, once
    os.environ["PLOTLY_RENDERER"] = "notebook"
    resources = {"metadata": {"path": str(path.parent)}}
    return NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources=resources).execute()


def to_html(notebook: object, title: str) -> str:
    """An executed notebook as one page.

    Args:
        notebook: nbformat's node.
        title: of the page.

    Returns:
        HTML that requests nothing.
    """
    from nbconvert import HTMLExporter
    from pygments.formatters import HtmlFormatter

    body, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    body = _REMOTE_SCRIPT.sub("", body)  # Plotly asks for MathJax in case a label holds a formula; none does
    return PAGE.format(
        title=html.escape(title), body=body, pygments=HtmlFormatter().get_style_defs(".highlight")
    )


def main() -> int:
    """Run, convert, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    said = unfit(args.notebook, args.out)
    if said:
        print(said, file=sys.stderr)
        return 2
    page = to_html(run_notebook(args.notebook), args.notebook.stem)
    args.out.write_text(page, encoding="utf-8")
    return 0


def unfit(notebook: Path, out: Path) -> str:
    """Why these two cannot be, in one line: looked at before a minute of work; makes the page's folder.

    Args:
        notebook: to be read.
        out: page to be written.

    Returns:
        The reason and the remedy; empty where there is none.
    """
    try:
        found = json.loads(notebook.read_text(encoding="utf-8"))
    except OSError as error:
        return f"{notebook}: cannot read ({error.strerror}); name a notebook"
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "cells" not in found or found.get("nbformat") != 4:
        return f"{notebook}: no notebook (JSON with cells, nbformat 4); name one"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{out}: cannot write there ({error.strerror}); name another page"
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        return f"{out}: cannot write there; name another page"
    if out.exists() and out.samefile(notebook):
        return f"{out}: is the notebook itself; name a page"
    return ""


if __name__ == "__main__":
    sys.exit(main())
