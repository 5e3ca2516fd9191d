"""What the site does to pages: Sphinx roles of the docstrings (``:func:`x```) become plain code."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:func|class|mod|data|attr|meth):<code>~?([^<]*)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Take the role's name away and keep its target."""
    return _ROLE.sub(r"<code>\1</code>", html)
