"""Context encoding: EncNet (Zhang, Dana, Shi, Zhang, Wang, Tyagi, Agrawal, CVPR 2018).

Checked against the authors' code. CBR: a 1 x 1 convolution, batch norm, ReLU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hamburger.contexts.common import check_map, check_sizes, contexts, conv_norm_relu
from hamburger.errors import OptionError, check_count
from hamburger.layers.norm import BatchNorm2d
from hamburger.tensors import full_precision, widen


@contexts.register("enc")
class Enc(nn.Module):
    """A gate on channels from a soft codebook of the image.   b c h w   ->   b c h w

        f = CBR(x)                                       b c n
        a_ik = softmax_over_k(s_k |f_i - d_k|²)          b k n, k codewords d and their smoothing factors s < 0
        e_k = Σ_i a_ik (f_i - d_k)                       b k c
        e = mean_over_k relu(BN_k(e_k))                  b c, one statistic per codeword
        out = relu(x + x * sigmoid(W e + bias))

    The paper writes -s_k; here the parameter includes the sign, as in the authors' code. Distances and residuals are
    expanded, so nothing of size n x k x c is stored, and are computed in float32 at least: they are sums over c and n.

    - `num_classes`: adds the linear head of the semantic encoding loss. `forward(x, return_se=True)` then returns
      (out, logits), logits b x num_classes: which classes are present in the image, for a binary cross-entropy.
    """

    def __init__(self, channels: int, *, codewords: int = 32, num_classes: int | None = None) -> None:
        super().__init__()
        check_sizes("Enc", channels=channels, codewords=codewords)
        if num_classes is not None:
            check_count("Enc", "num_classes", num_classes, least=1)
        self.channels = channels
        bound = (codewords * channels) ** -0.5
        self.lower = conv_norm_relu(channels, channels)
        self.codewords = nn.Parameter(torch.empty(codewords, channels).uniform_(-bound, bound))
        self.smoothing = nn.Parameter(torch.empty(codewords).uniform_(-1, 0))
        self.norm = BatchNorm2d(codewords)
        self.gate = nn.Linear(channels, channels)
        self.presence = nn.Linear(channels, num_classes) if num_classes is not None else None

    def forward(self, x: Tensor, return_se: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        check_map("Enc", x, self.channels)
        if return_se and self.presence is None:
            raise OptionError("Enc: return_se needs the head of the classes; build it with num_classes=...")
        code = self.encode(x)
        # the code grows with n until batch norm has seen some batches; it is only b x c, so float32 is cheap
        with full_precision(x.device.type):
            gate = torch.sigmoid(self.gate(code)).to(x.dtype)
            logits = self.presence(code) if return_se and self.presence is not None else None
        out = torch.relu(x + x * gate[:, :, None, None])
        return out if logits is None else (out, logits)

    def encode(self, x: Tensor) -> Tensor:
        """Return the image as one vector, the paper's e.   b c h w   ->   b c"""
        f = self.lower(x).flatten(2)
        with full_precision(x.device.type):
            f = widen(f)
            weights = self.assign(f)
            residuals = weights @ f.mT - weights.sum(2, keepdim=True) * self.codewords.to(f.dtype)  # b k c
            return torch.relu(self.norm(residuals.to(self.norm.weight.dtype)[..., None])).mean((1, 3))

    def assign(self, f: Tensor) -> Tensor:
        """Return the weights of the codewords at each position, which sum to 1.   b c n   ->   b k n"""
        words = self.codewords.to(f.dtype)
        lengths = words.square().sum(1)[:, None]
        distances = f.square().sum(1, keepdim=True) - 2 * (words @ f) + lengths
        return (self.smoothing.to(f.dtype)[:, None] * distances).softmax(1)
