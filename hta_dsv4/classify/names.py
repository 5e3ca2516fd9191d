"""A kernel's name, in whatever spelling, -> the words it is made of.

Profilers spell one kernel in many ways: torch.profiler demangles (``(anonymous namespace)``, ``128u``), nsys
writes ``<unnamed>`` and ``(int)128``, ROCm appends ``.kd`` or leaves the name mangled, CuTe DSL glues module
and class together, public tables cut names in the middle. Rules that look at the raw text have to know all
of this again and again, so the text is normalised here, once, and rules look at words:

* ``function``: the words of the kernel function itself;
* ``path``: the same with the namespaces before it;
* ``full``: the words of the whole name, template arguments and parameters included;
* ``text``: the cleaned spelling in lower case, for the few rules that need one (``sm80_xmma_..._ffma_...``).

Words are lower case, split at punctuation and at camelCase humps, joined by ``_`` and framed by ``_`` so that
``"_topk_" in path`` asks for a whole word. Terms the field writes both ways are folded into one (``RMSNorm``,
``rms_norm`` -> ``rmsnorm``; ``topK``, ``top_k`` -> ``topk``; ``all_reduce`` -> ``allreduce``, ...: see
``_FOLD_TERMS``), and library names that look like a term are dropped (``deep_gemm::transpose_fp32`` is no GEMM).
A function that only carries another (``cutlass::device_kernel<X>``, ``ck_tile::kentry<1, X>``) is replaced by
what it carries.

Only the first ``MAX_CHARS`` characters are read and every step is linear in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

MAX_CHARS = 2048
"""Characters of a name that are looked at; what decides stands far before this in every name seen so far."""

IN_A_SENTENCE = 60
"""Characters of a kernel's name in a sentence, at most."""

_MAX_WORD = 96
_RETURNED = ("std::enable_if<", "void std::enable_if<")
_CLONE = re.compile(r"\[clone [^\]\[]*\]|\.kd\b|\.(?:isra|constprop|part|cold)\.?\d*")
_ANONYMOUS = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\(anonymous\)::|\(anonymous namespace\)|<unnamed>",
    re.IGNORECASE,
)
# humps: an acronym before a hump (RMS|Norm), an acronym with its digits (FP8, NVFP4), a hump or plain run, the rest
_HUMPS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]{2,}\d+|[A-Z]?[a-z0-9]+|[A-Z]+|[^\W_a-zA-Z0-9]+")
# Two-word spellings of one term, folded into one word. Each is matched up to a word's end, so order is free.
_FOLD_TERMS = (
    "all_to_all", "all_reduce", "all_gather", "reduce_scatter", "top_k", "top_p", "min_p", "rms_norm",
    "layer_norm", "qk_norm", "split_kv", "split_k", "soft_max", "mo_e", "kv_cache", "k_cache",
    "mem_cpy", "mem_set", "arg_max", "arg_min", "arg_sort", "soft_plus", "de_quantize", "de_quant",
    "re_quant", "page_table", "block_table", "block_tables", "f_mha", "deep_ep", "split_kreduce",
    "intra_node", "inter_node", "nv_fp4", "mx_fp4", "mx_fp8", "mx_e2m1", "mx_e4m3", "si_lu", "ge_lu",
    "swi_glu", "flash_mla", "flash_attention", "flash_attn", "q_kv", "cum_sum", "multi_mem", "n_gram", "a2_a",
    "one_shot", "two_shot", "b_float16",
)  # fmt: skip
_FOLD = re.compile(r"_(" + "|".join(_FOLD_TERMS) + r")(?=_)")
# Names of vendors and libraries that contain a word with a meaning of its own; dropped, because who wrote a
# kernel says nothing about what it does.
_VENDOR = re.compile(r"_(?:deep_gemm|flash_infer|cutlass_kernels|triton_kernels|gemma\d*)(?=_)")
# Functions that say nothing themselves; their template argument is the kernel.
_CARRIER = re.compile(
    r"(?:.*::)?(?:Kernel2?|device_kernel|kentry|kentry_pt|trampoline_kernel|enable_\w+|kernel_wrapper)$"
)
_NUMERIC = re.compile(r"(?:\([\w: ]+\))?(?:-?\d+\w*|true|false)?$")
_CUTE_DSL = re.compile(r"^kernel_cutlass_(.*?)(?:_object_at_|_tensorptr|$)", re.DOTALL)
_OPEN = frozenset("<([{")
_CLOSE = frozenset(">)]}")


@dataclass(frozen=True)
class Words:
    """One normalised name; all strings lower case, word strings framed by ``_``.

    Attributes:
        text: cleaned spelling (demangled, clone suffixes and anonymous namespaces gone, cut at ``MAX_CHARS``).
        function: words of the kernel function.
        path: words of namespaces and function.
        spelling: the same as ``text`` in the case of the name.
    """

    text: str
    function: str
    path: str
    spelling: str

    @cached_property
    def full(self) -> str:
        """Words of the whole name; made when first asked for, since few rules need them."""
        return words(self.spelling)


def words(text: str) -> str:
    """Split a spelling into folded lower-case words.

    Args:
        text: any spelling, e.g. ``"FusedAddRMSNormKernel"``.

    Returns:
        The words framed and joined by ``_``: ``"_fused_add_rmsnorm_kernel_"``; ``"_"`` when there are none.
    """
    found = [w[:_MAX_WORD].lower() for w in _HUMPS.findall(text)]
    if not found:
        return "_"
    plain = _VENDOR.sub("", "_" + "_".join(found) + "_")
    return _FOLD.sub(lambda m: "_" + m[1].replace("_", ""), plain)


def _demangle(name: str) -> str:
    """Itanium-mangled ``_ZN3foo3barI...E...`` -> ``foo::bar<ids of the template arguments>``.

    Only identifiers matter to the rules, so types, literals and substitutions are dropped. A name cut in the
    middle gives what is there.
    """
    at, nested = (3, True) if name.startswith("_ZN") else (2, False)
    path: list[str] = []
    args: list[str] = []
    target = path
    size = len(name)
    while at < size:
        char = name[at]
        if char.isdigit():
            end = at
            while end < size and name[end].isdigit():
                end += 1
            # A length beyond any identifier is a broken name, not a reason to fail.
            length = int(name[at:end]) if end - at <= 4 else 0
            identifier = name[end : end + length]
            if not identifier.startswith("_GLOBAL__N_"):  # an anonymous namespace
                target.append(identifier)
            at = end + length
            if not nested and target is path:
                nested = True  # _Z<id>: what follows the one identifier is arguments
                target = args if at < size and name[at] == "I" else path
                if target is path:
                    break
        elif char == "I":
            target = args
            at += 1
        elif char == "E" and target is path:
            break
        elif name.startswith("DF16", at):  # the types _Float16 and bfloat16: their digits are no length
            at += 5
        elif char == "L" and target is args:  # a literal: L <type> <value> E
            stop = name.find("E", at)
            if at + 1 < size and name[at + 1].isdigit():  # of an enumeration type, which is an identifier
                at += 1
            else:
                at = size if stop < 0 else stop + 1
        elif char == "S" and at + 1 < size and (name[at + 1] == "_" or name[at + 1].isdigit()):
            stop = name.find("_", at)
            at = size if stop < 0 else stop + 1
        else:
            at += 1
    joined = "::".join(path)
    return f"{joined}<{', '.join(args)}>" if args else joined


def _split(text: str) -> tuple[str, str]:
    """``"void a::f<X, 3>(int)"`` -> (``"a::f"``, ``"X, 3"``): the path, and its outermost template arguments.

    A return type is dropped; brackets left open by a cut name are closed by the end of the text.
    """
    path: list[str] = []
    args: list[str] = []
    depth = 0
    previous = ""
    for char in text:
        if char in _OPEN:
            if depth == 0 and char != "<":
                if char == "(" and path:
                    break  # parameters
                depth += 1
            else:
                if depth:
                    args.append(char)
                depth += 1
        elif char in _CLOSE:
            if char == ">" and previous == "-":
                if depth:
                    args.append(char)
            elif depth:
                depth -= 1
                if depth:
                    args.append(char)
        elif depth:
            args.append(char)
        elif char == " ":
            path, args = [], []  # that was a return type
        else:
            path.append(char)
        previous = char
    return "".join(path), "".join(args)


def _carried(args: str) -> str | None:
    """The first template argument that is no number: the kernel that a carrier carries."""
    depth = start = 0
    for at, char in enumerate(args + ","):
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth <= 0:
            part = args[start:at].strip()
            if part and not _NUMERIC.match(part):
                return part
            start = at + 1
    rest = args[start:].strip()
    return rest or None


@lru_cache(maxsize=16384)
def normalise(name: str) -> Words:
    """Normalise a kernel name.

    Args:
        name: as a profiler wrote it.

    Returns:
        Its words; for an empty name every view is ``"_"`` and the text is empty.
    """
    text = _ANONYMOUS.sub("", _CLONE.sub("", name[:MAX_CHARS])).strip(" .")
    if text.startswith("_Z") and len(text) > 3 and (text[2] == "N" or text[2].isdigit()):
        text = _demangle(text)
    cute = _CUTE_DSL.match(text)
    if cute:
        # CuTe DSL repeats "kernel_", then glues the module path to the class: ...kernelsrmsnormRMSNormKernel
        text = cute[1].removeprefix("kernel_") or text
    path, args = _split(text)
    for _ in range(4):
        if not (args and _CARRIER.match(path)):
            break
        inner = _carried(args)
        if inner is None:
            break
        path, args = _split(inner)
    path = path or text
    return Words(
        text=text.lower(),
        function=words(path.rsplit("::", 1)[-1]),
        path=words(path),
        spelling=text,
    )


def short(name: str) -> str:
    """A kernel's name in a sentence: the function alone, without namespaces, template arguments and parameters.

    Args:
        name: as recorded.

    Returns:
        E.g. ``splitKreduce_kernel`` for ``void cublasLt::splitKreduce_kernel<32, 16, int>(cublasSplitKParams<float>)``;
        at most :data:`IN_A_SENTENCE` characters.
    """
    bare = _ANONYMOUS.sub("", name)
    if bare.startswith(_RETURNED) and ">::type " in bare:  # what such a template returns, before its name
        bare = bare.split(">::type ", 1)[1]
    head = bare.split("<", 1)[0].split("(", 1)[0].strip().split(" ")[-1].rsplit("::", 1)[-1] or name
    return head if len(head) <= IN_A_SENTENCE else head[: IN_A_SENTENCE - 1] + "…"
