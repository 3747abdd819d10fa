"""`hb.load`, `hb.train` and the lists of names: one call for every task."""

from __future__ import annotations

import json
import shutil

import huggingface_hub
import pytest
import torch

import hamburger as hb
from hamburger.checkpoints.weights_file import Info
from hamburger.generation.weights import save_generator
from hamburger.inference.find_weights import SHIPPED
from hamburger.tasks import tasks

TINY = {"num_classes": 3, "backbone": "tiny", "output_stride": 4, "head_options": {"width": 16}}
SMALL_GAN = {"resolution": 32, "num_classes": 2, "latent": 8, "width": 8}
NETWORKS = {
    "segmentation": lambda: hb.create_model("hamnet", **TINY),
    "classification": lambda: hb.create_classifier("resnet10t", num_classes=3, context="nmf"),
    "detection": lambda: hb.create_detector("tiny", num_classes=3, channels=8, hidden=16),
    "stereo": lambda: hb.create_stereo(width=8, groups=2, volume_width=4, max_disparity=16),
}
INFO = Info(classes=("sky", "sea", "sand"))


@pytest.fixture
def segmenter_file(tmp_path):
    tasks["segmentation"].save(tmp_path / "net.safetensors", NETWORKS["segmentation"](), INFO)
    return tmp_path / "net.safetensors"


@pytest.mark.parametrize("task", NETWORKS)
def test_load_returns_the_network_of_the_task_of_the_file(task, tmp_path):
    net = NETWORKS[task]()
    tasks[task].save(tmp_path / "net.safetensors", net, INFO if task != "stereo" else Info())
    loaded = hb.load(tmp_path / "net.safetensors")
    assert type(loaded) is type(net) and not loaded.training
    assert loaded.info.model
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in net.state_dict().items())


def test_load_takes_files_run_folders_and_hub_folders(segmenter_file, tmp_path):
    run, hub = tmp_path / "run", tmp_path / "hub"
    run.mkdir()
    shutil.copy(segmenter_file, run / "best.safetensors")
    expected = hb.load(str(segmenter_file))
    expected.save_pretrained(hub)
    for name in (run, str(hub)):
        assert torch.equal(hb.load(name).head.align[0].weight, expected.head.align[0].weight)


def test_load_returns_the_generator_of_a_gan_run(tmp_path):
    generator = hb.create_gan("hamgan", **SMALL_GAN).generator
    save_generator(tmp_path / "generator.safetensors", generator, ("cat", "dog"))
    for name in (tmp_path, tmp_path / "generator.safetensors"):
        loaded = hb.load(name)
        assert type(loaded) is type(generator) and loaded.info.classes == ("cat", "dog")


def test_load_downloads_from_the_hub(segmenter_file, monkeypatch):
    requests = []

    def download(repository, file, **options):
        requests.append((repository, file, options))
        return str(segmenter_file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert hb.load("someone/other", revision="v1").info.classes == INFO.classes
    assert requests == [("someone/other", "model.safetensors", {"revision": "v1"})]


def test_load_raises_with_advice(segmenter_file, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise OSError("no such repository\nat all")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(hb.CheckpointError, match=r"'a/b' is not a local path and .*\(OSError: no such repository\)"):
        hb.load("a/b")
    with pytest.raises(hb.InputError, match="there is no file or folder 'hamnet'; pass a weights file"):
        hb.load("hamnet")
    with pytest.raises(hb.InputError, match="the name is too long for a path, got 'xxx"):
        hb.load("x" * 5000)
    with pytest.raises(hb.InputError, match="is a local path; leave out revision"):
        hb.load(segmenter_file, revision="v1")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(hb.CheckpointError, match="broken"):
        hb.load(tmp_path / "broken.safetensors")


def test_a_predictor_takes_its_classes_from_the_loaded_network(segmenter_file):
    predictor = hb.Predictor(hb.load(segmenter_file), device="cpu")
    assert predictor.info.classes == INFO.classes
    assert predictor(torch.zeros(3, 20, 30, dtype=torch.uint8)).shape == (20, 30)
    with pytest.raises(hb.InputError, match=r"info must say the classes, mean and std of the network, got None; pass"):
        hb.Predictor(NETWORKS["segmentation"](), device="cpu")


def test_models_and_weights_are_listed():
    assert {"hamnet", "lightham"} <= set(hb.list_models())
    assert all((SHIPPED / f"{name}.md").is_file() for name in hb.list_weights())  # each with its model card


def test_train_takes_a_name_a_file_or_a_recipe_and_overrides(tmp_path):
    small = {"steps": 2, "batch": 4, "eval_every": 2, "checkpoint_every": 2, "data.options.length": 8}
    small |= {"model.context": "vq", "model.context_options": {"rank": 4}, "data.workers": 0}
    result = hb.train("patchwork", tmp_path / "a", overrides=small, accelerator="cpu")
    stored = json.loads((tmp_path / "a" / "recipe.json").read_text())
    assert stored["model"]["context_options"] == {"rank": 4} and stored["data"]["options"]["length"] == 8
    again = hb.train(tmp_path / "a" / "recipe.json", tmp_path / "b", accelerator="cpu", light=True)
    assert again.values["miou"] == result.values["miou"] and again.values["context"] == "vq"
    assert hb.load(tmp_path / "b").head.context.version == "v1"
    with pytest.raises(hb.OptionError, match="no field 'stpes'; did you mean 'steps'"):
        hb.train("patchwork", tmp_path / "c", overrides={"stpes": 2})
    with pytest.raises(hb.OptionError, match=r"'steps' in 'steps\.many' is not a group"):
        hb.train("patchwork", tmp_path / "c", overrides={"steps.many": 2})
    with pytest.raises(hb.UnknownNameError, match="did you mean 'patchwork'"):
        hb.train("pachwork", tmp_path / "c")
