"""Hams in a timm vision transformer: behind a block, or in place of its attention.

pip install '.[train]'
python examples/timm_vit.py
"""

import timm
import torch

import hamburger as hb

torch.manual_seed(0)
images = torch.rand(2, 3, 96, 96)
vit = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=96, num_classes=10).eval()
with torch.inference_mode():
    original = vit(images)

# 1. Insert: the gate starts at zero, so a pretrained network gives the same outputs until you train it.
hb.insert_context(vit, {"blocks.8": ("nmf", {"rank": 16})})
with torch.inference_mode():
    assert torch.equal(vit(images), original)
hb.remove_contexts(vit)

# 2. Replace the attention of the last four blocks. The ham is new, so the outputs change: fine-tune.
hb.replace_attention(vit, "nmf", rank=16, blocks=range(-4, 0))
vit.train()
optimizer = torch.optim.AdamW(vit.parameters(), lr=1e-3)
labels = torch.tensor([3, 7])
for step in range(5):
    loss = torch.nn.functional.cross_entropy(vit(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")

# 3. In evaluation the same input gives the same bits: the initial dictionary is part of the state dict.
vit.eval()
with torch.inference_mode():
    assert torch.equal(vit(images), vit(images))
print(vit.blocks[-1].attn)
