"""Weights files: our own format, and Hamburger weights of other implementations under our names.

>>> from hamburger.checkpoints import infer_options, load_hamburger, read_checkpoint
>>> state = read_checkpoint("hamnet.pth")
>>> layer = hb.Hamburger(**infer_options(state), rank=64)
>>> print(load_hamburger(layer, state))

Sources: "hamnet", the authors' burgers V1, V2 and V2+; "lightham", the authors' head in SegNeXt; "mmseg", the same head
in mmsegmentation, with the same keys. Rank, steps and gradient cannot be read from the tensors; see `infer_options`.
LightHam was trained with grad="bptt" and evaluated with eval_steps=7, both in SegNeXt and in mmsegmentation.
"""

from hamburger.checkpoints.foreign_burger import infer_options, load_hamburger
from hamburger.checkpoints.read import Report, read_checkpoint
from hamburger.errors import CheckpointError

__all__ = ["CheckpointError", "Report", "infer_options", "load_hamburger", "read_checkpoint"]
