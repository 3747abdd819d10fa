"""Triton's interpreter with less to do, in half of its time.

It dresses up `triton.language` anew for every call of a function in a kernel, which inside a kernel has been done
already; and it makes every sum and product of int32 again in int64 to see whether they agree, which of sizes as in
these tests they do.
"""

from __future__ import annotations

import dataclasses

import triton.language as tl
from triton.runtime import interpreter


def install() -> None:
    if not hasattr(interpreter, "_patch_lang") or not hasattr(interpreter, "_LangPatchScope"):
        return  # another Triton, which is slower then, and right as well
    patch_lang, dressed = interpreter._patch_lang, set()

    def patch_once(fn):
        seen = {name for name, module in (("tl", tl), ("core", tl.core)) if module in _modules(fn)}
        if seen and seen <= dressed:
            return interpreter._LangPatchScope()  # nothing was changed, so nothing is put back
        scope = patch_lang(fn)
        if not dressed:
            restore = scope.restore
            scope.restore = lambda: (dressed.clear(), restore())
        dressed.update(seen)
        return scope

    interpreter._patch_lang = patch_once
    if hasattr(interpreter, "_get_np_dtype"):
        interpreter._get_np_dtype = _remembered(interpreter._get_np_dtype)
    builder = interpreter.interpreter_builder
    if hasattr(builder.options, "sanitize_overflow"):
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _remembered(numpys):
    """By the name of a type, of numbers alone: a dictionary of all types was made for every look into it."""
    known = {}

    def found(dtype):
        scalar = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if isinstance(scalar, tl.pointer_type):
            return numpys(dtype)
        if scalar.name not in known:
            known[scalar.name] = numpys(scalar)
        return known[scalar.name]

    return found


def _modules(fn):
    return [value for value in fn.__globals__.values() if value is tl or value is tl.core]
