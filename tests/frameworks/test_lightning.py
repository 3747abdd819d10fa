"""Networks of this library in Lightning: training, resuming from a checkpoint, bit-exact evaluation."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import hamburger as hb

if importlib.util.find_spec("lightning") is None:
    pytest.skip("lightning is not installed; pip install lightning", allow_module_level=True)

import lightning

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


class Segmentation(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = hb.create_model(
            "hamnet", num_classes=2, backbone="tiny", output_stride=4, head_options={"width": 16, "dropout": 0.0}
        )

    def training_step(self, batch, index):
        return sum(self.net(*batch).values())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(folder, epochs, **options):
    torch.manual_seed(0)
    images = torch.randn(8, 3, 16, 16)
    data = DataLoader(TensorDataset(images, (images.mean(1) > 0).long()), batch_size=4)
    module = Segmentation()
    before = module.net.head.classifier[1].weight.clone()
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", default_root_dir=folder, logger=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, data, **options)
    assert not torch.equal(module.net.head.classifier[1].weight, before)
    return module, trainer.checkpoint_callback.best_model_path


def test_network_trains_and_its_checkpoint_restores_it(tmp_path):
    module, path = train(tmp_path, 2)
    again, x = Segmentation.load_from_checkpoint(path).eval(), torch.randn(1, 3, 16, 16)
    assert torch.equal(again.net(x), module.eval().net(x))
    again.net.save_pretrained(tmp_path / "net")
    assert torch.equal(hb.load(tmp_path / "net")(x), module.net(x))


def test_a_resumed_run_goes_on(tmp_path):
    module, path = train(tmp_path / "a", 2)
    resumed, _ = train(tmp_path / "b", 3, ckpt_path=path)
    assert resumed.global_step == 6 and resumed.current_epoch == 3
    moved = [not torch.equal(a, b) for a, b in zip(module.parameters(), resumed.parameters(), strict=True)]
    assert all(moved)
