"""Decompose the frames of a video, each from the dictionary of the frame before: fewer steps, the same atoms.

pip install .
python examples/video.py
"""

import torch

import hamburger as hb


def make_features(frames=12, channels=48, side=24, atoms=6):
    """Features of a slowly changing scene: fixed atoms, drifting maps of where each is, and noise."""
    generator = torch.Generator().manual_seed(0)
    bases = torch.rand(channels, atoms, generator=generator)
    maps = torch.rand(atoms, side, side, generator=generator)
    for frame in range(frames):
        codes = torch.roll(maps, shifts=frame, dims=-1).flatten(1)
        yield (bases @ codes + 0.1 * torch.rand(channels, side * side, generator=generator))[None]  # b d n


def error(x, out):
    return ((x - out.reconstruction).norm() / x.norm()).item()


ham = hb.NMF(rank=6)
generator = torch.Generator().manual_seed(1)
bases = None
before, matches = None, []
print("relative error of a frame: from a random dictionary in 1 or 6 steps, from that of the frame before in 1")
print("frame   random, 1   random, 6   carried, 1")
for frame, x in enumerate(make_features()):
    short, long = (hb.decompose(x, ham, steps=steps, generator=generator) for steps in (1, 6))
    if bases is None:
        carried = hb.decompose(x, ham, steps=30, generator=generator)  # the first frame takes its time
    else:
        carried = hb.decompose(x, ham, steps=1, bases=bases)
        matches.append(torch.cosine_similarity(bases, carried.bases, dim=1).min().item())
    bases = carried.bases
    print(f"{frame:5}   {error(x, short):9.3f}   {error(x, long):9.3f}   {error(x, carried):10.3f}")
print(f"least cosine between an atom and itself in the next frame: {min(matches):.3f}")
