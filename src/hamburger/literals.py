"""The names that public options take, as types: editors complete them, mypy checks them, checks at run time list them.

`get_args(Version)` gives the names as a tuple.
"""

from __future__ import annotations

from typing import Literal

# hams and contexts can be registered by anyone, so signatures take these types or any other string
HamName = Literal["nmf", "vq", "cd"]
ContextName = Literal[
    "a2",
    "acf",
    "apc",
    "cd",
    "da",
    "dfn",
    "dm",
    "efficient",
    "ema",
    "enc",
    "external",
    "lightham",
    "nmf",
    "nonlocal",
    "ocr",
    "psp",
    "sa",
    "sanet",
    "sgr",
    "spygr",
    "vq",
]

Version = Literal["paper", "v1", "v2", "v2+"]
Part = Literal["lower", "ham", "upper"]
Layout = Literal["channels", "tokens"]
Norm = Literal["batch", "group", "none"]
Init = Literal["random", "fixed", "learned", "online"]
CodesInit = Literal["softmax", "cosine", "uniform"]
# "truncated:m" works for every m; from 9 on, typed code passes `Truncated(m)`
GradientName = Literal[
    "one-step",
    "truncated:1",
    "truncated:2",
    "truncated:3",
    "truncated:4",
    "truncated:5",
    "truncated:6",
    "truncated:7",
    "truncated:8",
    "bptt",
    "implicit",
]
Backend = Literal["auto", "plain", "fused"]
