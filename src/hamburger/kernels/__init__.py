"""Fused GPU kernels. They take tensors and numbers and know no hams; `dispatch` decides when they run.

Modules that import Triton are loaded by the first fused call. `hopper/` needs Triton's Gluon language as well."""

from __future__ import annotations
