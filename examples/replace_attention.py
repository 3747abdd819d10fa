"""A ham in place of attention: torchvision's ViT, nn.TransformerEncoder, and a ViT of Hugging Face transformers.

pip install '.[train]'                    # and transformers, for the third part
python examples/replace_attention.py
"""

from importlib.util import find_spec

import torch
from torch import nn
from torchvision.models import vit_b_16

import hamburger as hb

torch.manual_seed(0)


def show(name, net, x):
    """Run a step of gradient descent in training mode, then print what stands in place of the attention."""
    output = net.train()(x)
    getattr(output, "logits", output).square().mean().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    replaced = [place for place, module in net.named_modules() if type(module).__name__ == "ReplacedAttention"]
    print(f"{name}: {', '.join(replaced)}")


# 1. torchvision: weights="DEFAULT" as you like; the last two blocks get an NMF of rank 32
vit = vit_b_16(weights=None, image_size=64, num_classes=10)
hb.replace_attention(vit, "nmf", rank=32, blocks=[-2, -1])
show("torchvision", vit, torch.rand(2, 3, 64, 64))

# 2. torch: no convolution shows the size of the input, so pass an example. Both orders of axes work.
layer = nn.TransformerEncoderLayer(d_model=64, nhead=4, batch_first=True)
encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
tokens = torch.randn(2, 50, 64)
hb.replace_attention(encoder, "efficient", heads=4, example=tokens)
show("torch", encoder, tokens)

# 3. transformers: ViT, DINOv2 and others whose attention takes nothing but tokens
if find_spec("transformers"):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=96, num_hidden_layers=4, num_attention_heads=3, intermediate_size=192, image_size=64)
    model = ViTForImageClassification(config)  # or .from_pretrained("google/vit-base-patch16-224")
    hb.replace_attention(model, "nmf", rank=12, blocks=[2, 3])
    show("transformers", model, torch.rand(2, 3, 64, 64))
    hb.remove_contexts(model)  # the attention is back, with its weights
