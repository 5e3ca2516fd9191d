"""JSON for other programs: as Python would indent it, at the speed of one that does not."""

from __future__ import annotations

import json
import time

from hypothesis import given
from hypothesis import strategies as st

from hta_dsv4.present import machine

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_documents_are_laid_out_as_by_json(body):
    """Any document -> byte for byte what json.dumps with an indent makes of it."""
    whole = {"schema": 1, "command": "x", **body}
    assert machine.dumps("x", body) == json.dumps(whole, indent=1)


def test_a_long_document_is_written_at_once():
    """100,000 repeats of a sweep -> some tenths of a second, as read back."""
    body = {"repeats": [{"concurrency": i, "requests": [], "step_ns": [1, 2]} for i in range(100_000)]}
    began = time.monotonic()
    text = machine.dumps("sweep", body)
    assert time.monotonic() - began < 5
    assert json.loads(text)["repeats"] == body["repeats"]
