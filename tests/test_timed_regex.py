"""A regex of a user's rule ends in time, whatever the name, and means what ``re`` reads."""

from __future__ import annotations

import pickle
import re
import time

import pytest

from hta_dsv4.classify.timed_regex import TimedRegex, _loose_brace
from hta_dsv4.errors import RulesError

HOSTILE = (
    "^(?:a|aa){40}x", "^(?:a?){500}x", "((a{1,8}){1,8}){1,8}x", "a?" * 30 + "a{30}x", "(?:a|aa){0,8}" * 6 + "x",
    "(?:(?:(?:a?){8}){8}){8}b", "(?:aa?a?a?){0,8}" * 4 + "x", "a{0,8}" * 11 + "x", "^(?:a|aa){500}x", "^(?:a|a){60}x",
    "^" + "(a|aa)" * 25 + "x", r"^(?:\w|a){64}!", "^(?:a{0,9}){64}x", r"(a*)\1\1\1x", "^(?:a*b?){8}x",
    "(?:(?:a|aa){8}){8}x",
)  # fmt: skip


@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_search_ends_within_seconds(pattern):
    """Patterns that keep re busy for minutes, a name of 2,000 letters a -> no match or one line, in seconds."""
    began = time.process_time()
    searched, said = TimedRegex(pattern, "f"), "its regex took over"
    try:
        found = searched.search("a" * 2000)
    except RulesError as error:
        found, said = None, str(error)
    assert found is None
    assert "its regex took over" in said
    assert time.process_time() - began < 5


def test_a_search_that_would_not_end_is_told():
    """2^40 ways to split a name -> the rule, the limit and how the name begins."""
    with pytest.raises(RulesError, match=r"^f: rule 'x': its regex took over 0.5 s on one name, 'aaaa"):
        TimedRegex("^(?:a|aa){40}x", "f: rule 'x'").search("a" * 2000)


@pytest.mark.parametrize(
    "pattern", ["ab{e<=1}c", "a{i}", "x{}", "x{,}", "{lambda", "[[:alpha:]]x", "[^]a]b{1e}"]
)
def test_what_means_something_else_to_another_engine_is_refused(pattern):
    """Fuzzy counts, POSIX classes -> text to re, so refused with what to write."""
    re.compile(pattern)
    with pytest.raises(RulesError, match=r"f: its regex can be read in two ways: a .*; write"):
        TimedRegex(pattern, "f")


@pytest.mark.parametrize(
    "pattern",
    [
        r"a{2}",
        "a{2,}b",
        "a{,2}b",
        r"\{lambda",
        "[{]x",
        r"[\]{]x",
        "[]{]x",
        "[^]{]x",
        r"fused_(?:mla|mha)\b",
        r"(?i)MLA",
    ],
)
def test_what_both_read_alike_is_taken(pattern):
    """Counts, escaped braces, braces in sets -> taken, with the matches of re."""
    mine = TimedRegex(pattern, "f")
    assert not _loose_brace(pattern)
    for text in ("aa", "aab", "b", "{lambda", "{x", "]x", "fused_mla", "mla", "cx"):
        assert bool(mine.search(text)) == bool(re.search(pattern, text))


def test_a_timed_regex_can_be_sent_to_another_process():
    """Pickled and back -> the same matches."""
    assert pickle.loads(pickle.dumps(TimedRegex("^mla", "f"))).search("mla_decode")
