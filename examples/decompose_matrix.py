"""Decompose a matrix of your own: parts of spectra, and how rank and steps change the error.

pip install .
python examples/decompose_matrix.py
"""

import torch

import hamburger as hb

# 400 samples, each a mixture of three spectra with 120 bands, with noise: the columns of x
generator = torch.Generator().manual_seed(0)
bands = torch.linspace(0, 1, 120)
spectra = torch.stack([torch.exp(-(((bands - centre) / 0.08) ** 2)) for centre in (0.2, 0.5, 0.75)], dim=1)
shares = torch.rand(3, 400, generator=generator) ** 2
x = (spectra @ shares + 0.05 * torch.randn(120, 400, generator=generator)).relu()

print("rank   steps   relative error")
for rank in (1, 2, 3, 6):
    for steps in (2, 20, 200):
        out = hb.decompose(x[None], "nmf", rank=rank, steps=steps, generator=torch.Generator().manual_seed(1))
        error = (x - out.reconstruction[0]).norm() / x.norm()
        print(f"{rank:4}   {steps:5}   {error.item():.3f}")

# The columns of `bases` are the spectra that were found, the rows of `codes` their shares in each sample.
out = hb.decompose(x[None], hb.NMF(rank=3), steps=200, generator=torch.Generator().manual_seed(1))
similarity = torch.nn.functional.normalize(out.bases[0], dim=0).T @ torch.nn.functional.normalize(spectra, dim=0)
for atom, row in enumerate(similarity):
    print(f"atom {atom} is spectrum {int(row.argmax())} (cosine {row.max().item():.3f})")

# VQ gives shares that sum to one; CD allows negative codes. Gradients flow through the last step only, unless you ask.
x.requires_grad_()
for ham in (hb.NMF(rank=3), hb.VQ(rank=3), hb.CD(rank=3)):
    out = hb.decompose(x[None], ham, steps=20, grad="one-step", generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(out.reconstruction.square().mean(), x)
    print(
        f"{type(ham).__name__}: codes {tuple(out.codes.shape[1:])}, norm of the gradient {gradient.norm().item():.2e}"
    )
