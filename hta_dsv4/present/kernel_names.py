"""Kernel names that fit a table: what tells kernels apart stays, what they share goes."""

from __future__ import annotations

import re

_NAMESPACE = re.compile(r"\b(?:at::native|at|c10|std|binary_internal)::|\(anonymous namespace\)::")
_EMPTY_LAMBDA = re.compile(r"\{lambda\(\)#\d+\}::operator\(\)\(\) const(?:::)?")
_LAMBDA = re.compile(r"\{lambda\(([^{}()]*)\)#\d+\}")
_CPP = re.compile(r"(?:void )?(?:\(anonymous namespace\)::|[\w:~])+[<(]")
_LONG = 80
# what a PyTorch kernel applies to its elements: a functor or the function that wrote the lambda, and its type
_APPLIED = re.compile(
    r"\b(?P<name>(?!(?:[AB]?UnaryFunctor|BinaryFunctor|gpu_\w+|ReduceOp)\b)"
    r"\w*(?:[Ff]unctor|_kernel_cuda|_kernel_impl|launch_|Ops\b|norm_ops)\w*)"
    r"(?P<type><[\w ,:]{1,24}>|\([^()]*\)(?:::\w+)*::(?P<of>[\w ]+))?"
)


def shorten(text: str, width: int) -> str:
    """A name cut to ``width`` characters.

    What kernel names share is left out first (:func:`essence`), then all but the function and what it applies
    (:func:`telling`), then the middle: names differ at both ends.

    Args:
        text: a kernel's name, or any text.
        width: characters that there is room for; a C++ name longer than 80 is freed of what says nothing in any case.

    Returns:
        At most ``width`` characters.
    """
    if len(text) > min(width, _LONG):
        text = essence(text)
    if len(text) > width:
        text = telling(text, width)
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def essence(name: str) -> str:
    """A kernel's name without what says nothing about which kernel it is.

    Args:
        name: e.g. ``void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, ...>(int, ...)``.

    Returns:
        E.g. ``vectorized_elementwise_kernel<4, FillFunctor<float>, ...>``; what is no C++ name stays as it is.
    """
    if not _CPP.match(name):
        return name
    text = _EMPTY_LAMBDA.sub("", name.removeprefix("void "))
    text = _NAMESPACE.sub("", _LAMBDA.sub(r"\1", text))
    if text.endswith(")"):
        depth = 0
        for at in range(len(text) - 1, 0, -1):
            depth += (text[at] == ")") - (text[at] == "(")
            if not depth:
                return text[:at].rstrip() or text
    return text


def telling(name: str, width: int = 1000) -> str:
    """A PyTorch carrier kernel by its function and what it applies.

    Args:
        name: e.g. ``elementwise_kernel<128, 2, gpu_kernel_impl_nocast<BinaryFunctor<float, MulFunctor<float> > > >``.
        width: where the result is longer, the function is cut rather than what it applies, down to 8 characters.

    Returns:
        E.g. ``elementwise_kernel<… MulFunctor<float> …>``; a name without such a part stays as it is.
    """
    function, bracket, arguments = name.partition("<")
    found = _APPLIED.search(arguments)
    if not (bracket and found):
        return name
    kind = (
        f"<{found['of']}>"
        if found["of"]
        else (found["type"] or "")
        if (found["type"] or "<")[0] == "<"
        else ""
    )
    applied = f"<… {found['name']}{kind} …>"
    room = max(width - len(applied), 8)
    return (function if len(function) <= room else function[: room - 1] + "…") + applied
