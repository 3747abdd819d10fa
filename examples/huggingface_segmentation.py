"""A Hamburger network in Hugging Face transformers: train a step, save, load with the Auto classes, pipeline.

pip install '.[huggingface]'
python examples/huggingface_segmentation.py
"""

import tempfile

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForSemanticSegmentation, pipeline

from hamburger.huggingface import HamburgerConfig, HamburgerImageProcessor  # registers them with the Auto classes

# 1. A new network: the first argument has the keywords of hb.create_model
torch.manual_seed(0)
small = {"backbone": "tiny", "output_stride": 4, "head_options": {"width": 32}}
model = AutoModelForSemanticSegmentation.from_config(HamburgerConfig(small, classes=("dark", "bright")))
processor = HamburgerImageProcessor(size={"longest_edge": 64})

# 2. Some steps by hand; transformers' Trainer works too. Photos and labels are resized and normalised together.
gradient = torch.arange(128, dtype=torch.uint8).mul(2).expand(3, 96, 128)
photo = Image.fromarray(gradient.movedim(0, 2).numpy())
batch = processor(photo, (gradient[0] > 127).long(), return_tensors="pt")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model.train()
for step in range(20):
    loss = model(**batch).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

# 3. Save, load, predict. hb.load and `ham predict` read the same folder.
folder = tempfile.mkdtemp()
model.eval().save_pretrained(folder)
processor.save_pretrained(folder)
again = AutoModelForSemanticSegmentation.from_pretrained(folder)
with torch.inference_mode():
    assert torch.equal(again(batch["pixel_values"]).logits, model(batch["pixel_values"]).logits)
segment = pipeline("image-segmentation", model=again, image_processor=AutoImageProcessor.from_pretrained(folder))
for part in segment(photo):
    share = sum(part["mask"].histogram()[255:]) / (photo.width * photo.height)
    print(f"{part['label']}: {share:.0%} of the photo, mask {part['mask'].size}")
