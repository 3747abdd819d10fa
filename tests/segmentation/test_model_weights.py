"""Networks in files and folders: bit-exact round trips, and errors for bad files."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.errors import CheckpointError, InputError
from hamburger.segmentation import Info, Segmenter, load_weights, save_weights

safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("huggingface_hub")

INFO = Info(classes=("sky", "wall", "dog"), palette=((0, 0, 0), (1, 2, 3), (255, 0, 9)), mean=(0.1, 0.2, 0.3),
            std=(1.0, 2.0, 3.0), extra={"miou": 0.5})  # fmt: skip


def small(context="nmf", **options):
    torch.manual_seed(3)
    net = hb.create_model(
        "hamnet",
        num_classes=3,
        backbone="tiny",
        output_stride=4,
        context=context,
        head_options={"width": 16},
        **options,
    )
    net(torch.randn(2, 3, 16, 16))  # running statistics away from where a fresh network has them
    return net.eval()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "deep" / "net.safetensors"
    save_weights(path, small(context_options={"rank": 4, "parts": {"lower", "ham"}}), INFO)
    return path


def test_a_file_restores_the_network(file):
    net, x = small(context_options={"rank": 4, "parts": {"lower", "ham"}}), torch.randn(2, 3, 33, 21)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    again, info = load_weights(file)
    assert torch.equal(torch.rand(1), expected)  # loading draws nothing that the caller would miss
    assert not again.training and torch.equal(again(x), net(x))
    assert info == again.info and info.classes == INFO.classes and info.palette == INFO.palette
    assert (info.mean, info.std, info.extra) == (INFO.mean, INFO.std, INFO.extra)
    assert info.model == net.config == again.config
    assert [p.name for p in file.parent.iterdir()] == ["net.safetensors"]  # nothing half-written stays


@pytest.mark.parametrize(
    ("context", "options"),
    [
        ("hals", {}),
        ("robust", {"threshold": 0.5, "component": "sparse"}),
        ("local", {"smoothness": 3.0, "grad": "phantom:2"}),
        ("windowed", {"window": 3, "local_rank": 1}),
        ("learned", {"relaxation": 1.5, "grad": "truncated:2"}),
    ],
)
def test_a_file_restores_hams_with_their_options_and_parameters(context, options, tmp_path):
    options = {"rank": 4, **options}
    net, x = small(context, context_options=options), torch.randn(2, 3, 33, 21)
    if context == "learned":
        net.head.context.ham.relaxation.data.normal_()
    save_weights(tmp_path / "w.safetensors", net, INFO)
    again, info = load_weights(tmp_path / "w.safetensors")
    assert torch.equal(again(x), net(x))
    assert again.head.context.ham.ham == net.head.context.ham.ham and info.model["context_options"] == options


def test_channels_last_weights_and_missing_class_names(tmp_path):
    net = small().to(memory_format=torch.channels_last)
    save_weights(tmp_path / "w.safetensors", net)
    again, info = load_weights(tmp_path / "w.safetensors")
    assert info.classes == ("0", "1", "2")
    for name, value in net.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_a_folder_restores_the_network(tmp_path):
    net, x = small(), torch.randn(2, 3, 33, 21)
    net.save_pretrained(tmp_path / "mine", info=INFO)
    files = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md"}
    assert {p.name for p in (tmp_path / "mine").iterdir()} == files
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    assert config["model"]["context"] == "nmf" and config["classes"] == ["sky", "wall", "dog"]
    again = Segmenter.from_pretrained(tmp_path / "mine")
    assert torch.equal(again(x), net(x)) and again.info.classes == INFO.classes
    (tmp_path / "mine" / "README.md").write_text("edited")
    again.save_pretrained(tmp_path / "mine")  # the info it came with, and the page that a person wrote
    assert Segmenter.from_pretrained(tmp_path / "mine").info == again.info
    assert (tmp_path / "mine" / "README.md").read_text() == "edited"


def test_uploads_have_the_files_of_a_folder(tmp_path, monkeypatch):
    class Api:
        def __init__(self, token=None):
            pass

        def create_repo(self, repo_id, **options):
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, *, folder_path, **options):
            self.__class__.net = Segmenter.from_pretrained(folder_path)
            return "https://hub/commit"

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    net, x = small(), torch.randn(1, 3, 20, 20)
    assert net.push_to_hub("someone/net", info=INFO, private=True) == "https://hub/commit"
    assert torch.equal(Api.net(x), net(x))


def test_bad_files_are_named(file, tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="there is no file"):
        load_weights(tmp_path / "none.safetensors")
    whole = file.read_bytes()
    for cut in (0, 5, 100, len(whole) - 7):
        file.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match=f"{cut} bytes. is not a readable"):
            load_weights(file)
    safetensors.save_file({"a": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(CheckpointError, match="has no hamburger metadata"):
        load_weights(tmp_path / "foreign.safetensors")
    for text, message in (
        ("{", "does not describe a network"),
        ("[]", "does not describe a network"),
        ('{"version": 9}', "written by a newer version"),
        (Info(model={"name": "hamnett", "num_classes": 2}).as_json(), "did you mean 'hamnet'"),
        (Info(model={"nam": "x"}).as_json(), "cannot be built"),
        (Info(model=small().config).as_json(), "do not fit the network"),
    ):
        safetensors.save_file({"a": torch.zeros(2)}, tmp_path / "f.safetensors", metadata={"hamburger": text})
        with pytest.raises(CheckpointError, match=message):
            load_weights(tmp_path / "f.safetensors")
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        Segmenter.from_pretrained(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="is not a local path and could not be downloaded"):
        Segmenter.from_pretrained("nobody/nothing")


def test_networks_a_file_cannot_rebuild_are_refused_before_writing(tmp_path):
    path = tmp_path / "w.safetensors"
    for net, error, message in (
        (nn.Linear(2, 2), InputError, "needs a Segmenter"),
        (small(context=nn.Conv2d(16, 16, 1)), CheckpointError, "Conv2d instance, which a file cannot rebuild"),
        (small(context_options={"grad": hb.Truncated(2)}), CheckpointError, "context_options=.* as JSON"),
        (Segmenter(small().backbone, small().head, num_classes=3), CheckpointError, "not built by create_model"),
    ):
        with pytest.raises(error, match=message):
            save_weights(path, net)
    with pytest.raises(CheckpointError, match="info must have 3 class names"):
        save_weights(path, small(), Info(classes=("sky",)))
    assert not path.exists()
