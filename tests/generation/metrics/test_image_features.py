"""Extractors: reproducible features, verified weights, and labels in results."""

from __future__ import annotations

import hashlib
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from gaussians import fit_gaussian
from tolerances import assert_close
from torch import nn

from hamburger.errors import CheckpointError, InputError, OptionError, ShapeError
from hamburger.generation.evaluate import Distances, collect_features
from hamburger.generation.metrics import extractors
from hamburger.generation.metrics.distances import KernelDistance, PrecisionRecall
from hamburger.generation.metrics.extractors import (
    OFFICIAL_SHA256,
    RESIZERS,
    distance_name,
    fid_inception,
    file_digest,
    module_extractor,
    resize,
    state_digest,
)
from hamburger.generation.metrics.networks import FidInception


def images(b=4, size=16):
    return torch.randint(256, (b, 3, size, size), dtype=torch.uint8)


def lively(network):
    """The network with random weights and statistics under which every layer carries a signal."""
    for name, value in network.state_dict().items():
        if name.endswith("running_var") or (value.dim() == 1 and name.endswith("weight")):
            value.uniform_(0.5, 1.5)
        elif value.dim() > 1:
            value.normal_(0, (2 / value[0].numel()) ** 0.5)
        elif value.is_floating_point():
            value.normal_(0, 0.1)
    return network.eval()


class Small(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.conv = nn.Conv2d(3, d, 3)
        self.norm = nn.BatchNorm2d(d)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.conv(x))).mean((2, 3))


@pytest.fixture(scope="module")
def inception_file(tmp_path_factory):
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("weights") / "inception.pth"
    torch.save(lively(FidInception()).state_dict(), path)
    return path


def test_inception_is_torchvisions_except_for_pooling(monkeypatch):
    """Same names, shapes and values as torchvision's network with the pooling of the network of 2015."""
    theirs = pytest.importorskip("torchvision.models.inception")
    ours = lively(FidInception())
    net = theirs.Inception3(num_classes=1008, aux_logits=False, init_weights=False).eval()
    assert {k: v.shape for k, v in net.state_dict().items()} == {k: v.shape for k, v in ours.state_dict().items()}
    net.load_state_dict(ours.state_dict())
    net.fc = nn.Identity()

    def average(x, kernel_size, stride, padding):
        return F.avg_pool2d(x, kernel_size, stride, padding, count_include_pad=False)

    kept = SimpleNamespace(avg_pool2d=average, max_pool2d=F.max_pool2d, relu=F.relu)
    last = SimpleNamespace(avg_pool2d=F.max_pool2d, relu=F.relu)
    net.Mixed_7c.register_forward_pre_hook(lambda *_: monkeypatch.setattr(theirs, "F", last))
    x = torch.rand(2, 3, 147, 139)
    with torch.no_grad():
        got = ours(x)  # before torchvision's pooling is replaced
        monkeypatch.setattr(theirs, "F", kept)
        expected = net(2 * x - 1)
    assert got.shape == (2, 2048)
    assert got.std() > 0.01
    assert_close(got, expected, slack=5)


def test_inception_is_torch_fidelitys_except_for_the_scaling_of_pixels(inception_file):
    """torch-fidelity computes (x - 128) / 128 from bytes, as the original graph does; we compute x / 127.5 - 1."""
    theirs = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    net = theirs.FeatureExtractorInceptionV3(
        "inception-v3-compat", ["2048"], feature_extractor_weights_path=inception_file
    )
    ours = FidInception().eval()
    ours.load_state_dict(torch.load(inception_file, weights_only=True))
    x = images(2, 32)
    pixels = 255 * resize(x, 299, "bilinear-tf1")
    with torch.no_grad():
        assert_close(ours(((pixels - 128) / 128 + 1) / 2), net(x)[0], slack=5)


def test_hash_of_the_official_weights():
    assert OFFICIAL_SHA256 == "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"


def test_other_weights_are_refused(inception_file):
    with pytest.raises(CheckpointError, match="6726825d0af5f729"):
        fid_inception(inception_file)


def open_inception(path, monkeypatch):
    """The extractor of these weights, as if they were the official ones."""
    monkeypatch.setattr(extractors, "OFFICIAL_SHA256", file_digest(path))
    return fid_inception(path)


def test_only_the_official_weights_are_called_fid(inception_file, monkeypatch):
    monkeypatch.setattr(extractors, "OFFICIAL_SHA256", hashlib.sha256(inception_file.read_bytes()).hexdigest())
    official = fid_inception(inception_file, resizer="bilinear-tf1")
    assert distance_name(official.label) == "FID"
    assert distance_name(official.label, "kernel") == "KID"
    assert " bilinear-tf1 " in official.label
    for resizer in ("bilinear", "bilinear-antialias"):
        label = fid_inception(inception_file, resizer=resizer).label
        assert distance_name(label) == f"FID[{resizer}]" and distance_name(label, "kernel") == f"KID[{resizer}]"
    x = images(1)
    assert official(x).shape == (1, 2048)
    assert torch.equal(official(x), official(x))
    monkeypatch.undo()
    assert distance_name(official.label) != "FID"


def test_weights_from_safetensors(inception_file, tmp_path, monkeypatch):
    save = pytest.importorskip("safetensors.torch").save_file
    state = torch.load(inception_file, weights_only=True)
    save(state, tmp_path / "w.safetensors")
    a = open_inception(inception_file, monkeypatch)
    b = open_inception(tmp_path / "w.safetensors", monkeypatch)
    assert a.label != b.label
    assert all(torch.equal(v, b.network.state_dict()[k]) for k, v in a.network.state_dict().items())


def test_files_that_do_not_fit_are_reported(tmp_path, monkeypatch):
    state = FidInception().state_dict()
    renamed = {("fc2.bias" if k == "fc.bias" else k): v for k, v in state.items()}
    torch.save(renamed, tmp_path / "renamed.pth")
    with pytest.raises(CheckpointError, match=r"1 missing: fc\.bias; 1 unexpected: fc2\.bias"):
        open_inception(tmp_path / "renamed.pth", monkeypatch)
    torch.save(state | {"fc.bias": torch.zeros(1000)}, tmp_path / "shape.pth")
    with pytest.raises(CheckpointError, match=r"size mismatch for fc.bias"):
        open_inception(tmp_path / "shape.pth", monkeypatch)
    torch.save(state | {"fc.bias": torch.full((1008,), float("nan"))}, tmp_path / "nan.pth")
    with pytest.raises(CheckpointError, match=r"not finite: fc\.bias"):
        open_inception(tmp_path / "nan.pth", monkeypatch)
    torch.save({k: v for k, v in state.items() if "num_batches" not in k}, tmp_path / "old.pth")
    open_inception(tmp_path / "old.pth", monkeypatch)
    (tmp_path / "noise.pth").write_bytes(b"\x00\x01" * 500)
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        open_inception(tmp_path / "noise.pth", monkeypatch)
    with pytest.raises(FileNotFoundError, match=r"nothing\.pth"):
        fid_inception(tmp_path / "nothing.pth")


class Harm:
    def __reduce__(self):
        return (print, ("run",))


def test_pickled_code_is_not_run(tmp_path, capsys, monkeypatch):
    torch.save({"fc.bias": Harm()}, tmp_path / "harm.pth")
    with pytest.raises(CheckpointError, match="refused"):
        open_inception(tmp_path / "harm.pth", monkeypatch)
    assert capsys.readouterr().out == ""


def test_same_images_same_features():
    extractor = module_extractor(Small(), "small", size=12)
    x = images()
    first = extractor(x)
    extractor.network.train()  # dropout and batch statistics would change the features
    assert torch.equal(extractor(x), first)
    assert_close(torch.cat([extractor(part) for part in x.split(1)]), first)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(extractor(x), first)
    assert first.dtype == torch.float32
    assert not first.requires_grad


def test_memory_layout_changes_only_rounding_and_user_networks_stay_contiguous(inception_file, monkeypatch):
    x = images(2, 75)
    ours = open_inception(inception_file, monkeypatch)
    plain = FidInception().eval()
    plain.load_state_dict(torch.load(inception_file, weights_only=True))
    with torch.no_grad():
        assert_close(ours(x), plain(resize(x, 299)))

    class Views(Small):
        def forward(self, x):
            return self.norm(self.conv(x)).view(x.shape[0], -1)  # fails for channels-last

    module_extractor(Views(), "views", size=8)(x)


def test_labels_depend_on_name_weights_size_and_resizer():
    net = Small()
    label = module_extractor(net, "small", size=12).label
    assert label == module_extractor(net, "small", size=12).label
    assert label == f"small@12 bilinear-antialias sha256:{state_digest(net)[:16]}"
    others = {
        module_extractor(net, "tiny", size=12).label,
        module_extractor(net, "small", size=13).label,
        module_extractor(net, "small", size=12, resizer="bilinear").label,
    }
    kept = module_extractor(net, "small", size=12)
    before = kept(x := images())
    with torch.no_grad():
        net.norm.running_mean[0] += 1e-3
    others.add(module_extractor(net, "small", size=12).label)
    assert label not in others
    assert len(others) == 4
    assert torch.equal(kept(x), before)
    assert kept.label == label


def test_an_unusual_resizer_is_part_of_the_name():
    names = {resizer: module_extractor(Small(), "small", size=12, resizer=resizer).label for resizer in RESIZERS}
    assert {resizer: distance_name(label) for resizer, label in names.items()} == {
        "bilinear-antialias": "frechet[small@12]",
        "bilinear": "frechet[small@12 bilinear]",
        "bilinear-tf1": "frechet[small@12 bilinear-tf1]",
    }


def test_misleading_names_are_refused():
    with pytest.raises(OptionError, match="reserved"):
        module_extractor(Small(), "fid_inception", size=12)
    with pytest.raises(OptionError, match="letters"):
        module_extractor(Small(), "FID @299", size=12)
    assert distance_name("FID") == "frechet[FID]"
    assert distance_name("my own") == "frechet[my own]"


def test_a_network_must_return_one_row_per_image():
    with pytest.raises(ShapeError, match="'b d'"):
        module_extractor(nn.Conv2d(3, 4, 1), "maps", size=8)(images())


def test_streamed_statistics_equal_those_of_all_features():
    extractor = module_extractor(Small(), "small", size=12)
    x = images(20)
    whole = fit_gaussian(extractor(x))
    for split in (1, 7, 20):
        got, kept = collect_features(x.split(split), extractor, keep=9)
        torch.testing.assert_close(got.mean, whole.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(got.covariance, whole.covariance, rtol=1e-4, atol=1e-6)
        assert_close(kept, extractor(x[:9]))
    with pytest.raises(InputError, match="no images"):
        collect_features([], extractor)


def test_a_result_names_its_extractor():
    extractor = module_extractor(Small(), "small", size=12)
    kernel, neighbours = KernelDistance(0.125, 0.25, 4, 20), PrecisionRecall(0.5, 0.75, 3)
    got = Distances(extractor.label, 40, 30, 1.5, kernel, neighbours)
    row = got.row()
    assert got.name == row["name"] == "frechet[small@12]"
    assert row["extractor"] == extractor.label
    assert extractor.label in str(got)
    assert "FID" not in str(got)
    assert (row["frechet"], row["kid"], row["precision"], row["recall"]) == (1.5, 0.125, 0.5, 0.75)
    assert row["kid_subset_std"] == pytest.approx(row["kid_standard_error"] * math.sqrt(4)) and "+-" not in str(got)
    assert f"{row['kid']:.5f} (subsets of 20 vary by {row['kid_subset_std']:.5f}), precision" in str(got)
    assert (row["real_images"], row["fake_images"], row["kid_subset_size"], row["neighbours"]) == (40, 30, 20, 3)
