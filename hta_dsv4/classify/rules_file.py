"""Where rules come from: the bundled ones, an engine's, the user's own files, laid over one another.

A rules file is TOML::

    disable = ["bundled-rule-name"]      # optional: bundled rules to leave out

    [[rule]]
    name = "my-attention"                # a rule of the same name in an earlier layer is replaced
    bucket = "attention"                 # one of BUCKETS
    role = "attention_core"              # finer; any word
    priority = 1000                      # optional; bundled rules use 1..999, files of users default to 1000
    words = ["mla|mha", "decode"]        # every entry must be found; "|" separates alternatives
    without = ["reduce|combine"]         # optional: none of these may be found
    where = "path"                       # optional: function | path (default) | full
    regex = "^fused_mla"                 # optional, on the cleaned lower-case text; all conditions must hold
    ambiguous = "why the name alone cannot tell"   # optional
    comment = "why this rule exists"
    examples = ["my_mla_decode_kernel"]                  # names this rule must win
    counter_examples = ["my_mla_decode_reduce_kernel"]   # names this rule must not win

An alternative is a word (``topk``), a phrase of adjacent words (``paged_decode``) or a word with wildcards
(``*gemm*``, which never crosses a word boundary).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from hta_dsv4.classify.rule import Rule, parse_rule, texts
from hta_dsv4.classify.rules import RuleSet
from hta_dsv4.errors import RulesError
from hta_dsv4.trace.toml_text import TomlError, from_toml

_HERE = Path(__file__).parent
_LONGEST = 16 << 20  # bytes of a rules file


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:  # a device, or something else by mistake
            raise RulesError(f"{path}: longer than any rules file; give a rules file")
        return from_toml(content.decode())
    except FileNotFoundError:
        raise RulesError(f"{path}: no such rules file; check the path") from None
    except OSError as error:
        raise RulesError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from None
    except UnicodeDecodeError as error:
        raise RulesError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except TomlError as error:
        raise RulesError(f"{path}: not valid TOML: {error}; correct it there") from None
    except (RecursionError, ValueError) as error:  # brackets in brackets in brackets; a path with a NUL
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RulesError(f"{path}: cannot be read ({why}); give a rules file") from None


def _layer(path: Path, layer: int) -> tuple[list[Rule], tuple[str, ...]]:
    """The rules of one file and the names it disables."""
    document = _read(path)
    for key in document:
        if key not in ("rule", "disable"):
            raise RulesError(
                f"{path}: unknown key {key!r}; a rules file holds [[rule]] tables and disable = [...]"
            )
    entries = document.get("rule", [])
    if not isinstance(entries, list):
        raise RulesError(f"{path}: rule must be an array of tables; write [[rule]], with two brackets")
    rules = [parse_rule(entry, number, path, layer) for number, entry in enumerate(entries, 1)]
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            raise RulesError(f"{path}: rule {rule.name!r} is there twice; give each rule its own name")
        seen.add(rule.name)
    return rules, texts(document, "disable", str(path))


def engines() -> tuple[str, ...]:
    """Names of the bundled engine layers, e.g. ``("sglang", "vllm")``."""
    return tuple(sorted(path.stem for path in (_HERE / "engines").glob("*.toml")))


def load_rules(*user_files: Path | str, engine: str | None = None) -> RuleSet:
    """Load the bundled rules, an engine's layer and the user's files, in this order.

    A later layer replaces rules of the same name and, at equal priority, is tried first. The examples of the
    engine's and the user's rules are checked here.

    Args:
        user_files: TOML files, the last one strongest.
        engine: one of :func:`engines` (names so generic that only the engine tells them), or ``None``.

    Returns:
        The rule set.

    Raises:
        RulesError: a file is missing or not TOML, a rule is malformed, or an example does not hold; the
            message names file, rule and remedy.
    """
    paths = [(_HERE / "rules.toml", 0)]
    if engine is not None:
        if engine not in engines():
            raise RulesError(f"no rules for engine {engine!r}; use one of {', '.join(engines())}, or none")
        paths.append((_HERE / "engines" / f"{engine}.toml", 1))
    paths += [(Path(path), number) for number, path in enumerate(user_files, 2)]
    merged: dict[str, Rule] = {}
    for path, layer in paths:
        rules, disabled = _layer(path, layer)
        for name in disabled:
            if merged.pop(name, None) is None:
                raise RulesError(
                    f"{path}: disable names {name!r}, which is no rule of an earlier layer; drop it"
                )
        for rule in rules:
            merged.pop(rule.name, None)
            merged[rule.name] = rule
    result = RuleSet(merged.values())
    for _, layer in paths[1:]:
        for rule, problem in result.failures(layer):
            raise RulesError(
                f"{rule.source}: rule {rule.name!r}: {problem}; correct the rule, the example or the priority"
            )
    return result


@lru_cache(maxsize=1)
def default_rules() -> RuleSet:
    """The bundled rules alone, loaded once."""
    return load_rules()
