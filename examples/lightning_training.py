"""A network of this library in Lightning: the network returns its loss terms, Lightning does the rest.

pip install '.[train]' lightning
python examples/lightning_training.py
"""

import tempfile

import lightning
import torch
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, TensorDataset

import hamburger as hb


class Segmentation(lightning.LightningModule):
    def __init__(self, **options):
        super().__init__()
        self.save_hyperparameters()  # load_from_checkpoint builds the same network again
        self.net = hb.create_model("hamnet", **options)

    def training_step(self, batch, index):
        terms = self.net(*batch)  # images and labels, 255 where unlabelled -> loss terms by name
        self.log_dict(terms)
        return sum(terms.values())

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


lightning.seed_everything(0)
folder = tempfile.mkdtemp()
images = interpolate(torch.randn(16, 3, 4, 4), size=(32, 32))  # squares: bright ones are class 1
data = DataLoader(TensorDataset(images, (images.mean(1) > 0).long()), batch_size=4)
module = Segmentation(num_classes=2, backbone="tiny", output_stride=4, head_options={"width": 32})
trainer = lightning.Trainer(
    max_epochs=8, accelerator="cpu", default_root_dir=folder, logger=False, enable_progress_bar=False
)
trainer.fit(module, data, data)
print(f"accuracy {trainer.callback_metrics['accuracy']:.2f}")

again = Segmentation.load_from_checkpoint(trainer.checkpoint_callback.best_model_path).eval()
with torch.inference_mode():
    assert torch.equal(again.net(images), module.eval().net(images))
again.net.save_pretrained(folder)  # for hb.load, `ham predict` and Hugging Face transformers
