"""A ham in an Ultralytics YOLO, added in the model's YAML.

pip install . ultralytics
python examples/ultralytics_yolo.py
"""

import tempfile
from pathlib import Path

import torch
import ultralytics
import yaml
from ultralytics import YOLO
from ultralytics.nn import tasks

import hamburger as hb


class NMFBurger(hb.Hamburger):
    """YAML files pass arguments by position."""

    def __init__(self, channels, rank):
        super().__init__(channels, ham="nmf", rank=rank)


tasks.NMFBurger = NMFBurger  # YAML files name modules of ultralytics.nn.tasks

# 1. The YAML of YOLO11 with one more layer at the end of the backbone: [from, repeats, module, arguments]
config = yaml.safe_load((Path(ultralytics.__file__).parent / "cfg/models/11/yolo11.yaml").read_text())
config["nc"] = 3
layers = len(config["backbone"])
config["backbone"].append([-1, 1, "NMFBurger", [256, 32]])  # channels at this depth, rank


def shift(source):
    """What read the last layer of the backbone reads the new one; later layers count one more; -1 stays."""
    return [shift(i) for i in source] if isinstance(source, list) else source + (source >= layers - 1)


config["head"] = [[shift(source), *rest] for source, *rest in config["head"]]
path = Path(tempfile.mkdtemp()) / "yolo11n-ham.yaml"  # the n is the scale
path.write_text(yaml.safe_dump(config))

# 2. A YOLO as usual: train(data=...), val(), predict(), export()
yolo = YOLO(path, task="detect")
print(yolo.model.model[layers])

# 3. One step by hand, on an image with one box
net = yolo.model.train()
net.args = ultralytics.utils.DEFAULT_CFG
batch = {
    "img": torch.rand(2, 3, 96, 96),
    "batch_idx": torch.tensor([0.0, 1.0]),
    "cls": torch.tensor([[0.0], [2.0]]),
    "bboxes": torch.tensor([[0.5, 0.5, 0.4, 0.4], [0.3, 0.6, 0.2, 0.3]]),  # centre and size, in parts of the image
}
loss, _ = net(batch)
loss.sum().backward()
print(f"loss {loss.sum().item():.2f}, gradient {net.model[layers].lower.weight.grad.norm().item():.2e}")
