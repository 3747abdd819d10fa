"""HamNet and LightHam as models of segmentation_models_pytorch, with its encoders, losses, metrics and files.

pip install '.[smp]'
python examples/smp_models.py
"""

import tempfile

import segmentation_models_pytorch as smp
import torch

import hamburger.smp

torch.manual_seed(0)
images, labels = torch.rand(2, 3, 96, 128), torch.randint(3, (2, 96, 128))

# 1. By name, like smp's own models; encoder_weights="imagenet" downloads weights for the encoder
model = smp.create_model("lightham", encoder_name="resnet18", encoder_weights=None, classes=3)
loss_function = smp.losses.DiceLoss("multiclass")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    loss = loss_function(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: Dice loss {loss.item():.3f}")
prediction = model.predict(images).argmax(1)
counts = smp.metrics.get_stats(prediction, labels, mode="multiclass", num_classes=3)
print(f"IoU {smp.metrics.iou_score(*counts, reduction='micro').item():.3f}")

# 2. By class, with options: HamNet dilates the encoder, and takes any context
hamnet = hamburger.smp.HamNet("mit_b0", encoder_weights=None, classes=3, decoder_channels=64, context="efficient")
print("scores:", tuple(hamnet.predict(images).shape))  # (2, 3, 96, 128)

# 3. smp's files
folder = tempfile.mkdtemp()
model.save_pretrained(folder)
assert torch.equal(smp.from_pretrained(folder).predict(images), model.predict(images))
