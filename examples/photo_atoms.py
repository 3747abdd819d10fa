"""Decompose a photo into atoms, and draw which pixels hold how much of each. No network, no weights.

pip install . pillow numpy
python examples/photo_atoms.py photo.jpg atoms.webp
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

import hamburger as hb

SAMPLE = Path(hb.__file__).parent / "app/samples/astronaut.jpg"
DARK, BRIGHT = torch.tensor([213.0, 94.0, 0.0]), torch.tensor([255.0, 225.0, 120.0])


def make_features(image):
    """Brightness, darkness and colour of every pixel and of its surroundings.   3 h w -> 15 h w, none negative"""
    features = []
    for size in (1, 5, 15):
        mean = F.avg_pool2d(image[None], size, 1, size // 2, count_include_pad=False)[0]
        grey = mean.mean(0, keepdim=True)
        features += [grey, 1 - grey, 3 * (mean - grey).relu()]
    return torch.cat(features)


def draw_heat(image, values):
    """The share of an atom in colour, over the image in dark grey.   3 h w, h w -> h w 3"""
    share = (values / values.max())[..., None]
    grey = 0.5 * 255 * image.mean(0)[..., None].expand(-1, -1, 3)
    return torch.lerp(grey, torch.lerp(DARK, BRIGHT, share), share**1.5)


source = sys.argv[1] if len(sys.argv) > 1 else SAMPLE
target = sys.argv[2] if len(sys.argv) > 2 else "atoms.webp"
photo = Image.open(source).convert("RGB")
photo.thumbnail((352, 352))
image = torch.from_numpy(np.array(photo)).movedim(2, 0) / 255

x = make_features(image).flatten(1)[None]  # the matrix X: 15 features at each of n pixels
out = hb.decompose(x, "nmf", rank=3, steps=200, generator=torch.Generator().manual_seed(0))
error = (x - out.reconstruction).norm() / x.norm()
print(f"X is {x.shape[1]} x {x.shape[2]:,}; three atoms leave an error of {100 * error.item():.0f} %")

maps = (out.codes[0] * out.bases[0].norm(dim=0)[:, None]).unflatten(1, image.shape[1:])
maps = maps[maps.flatten(1).norm(dim=1).argsort(descending=True)]  # the strongest atom first
tiles = [255 * image.movedim(0, 2), *(draw_heat(image, values) for values in maps)]
h, w = image.shape[1:]
sheet = Image.new("RGBA", (4 * w + 3 * 12, h))  # transparent between the tiles
for number, tile in enumerate(tiles):
    sheet.paste(Image.fromarray(tile.round().byte().numpy()), (number * (w + 12), 0))
sheet.save(target)
print(f"wrote {target}")
