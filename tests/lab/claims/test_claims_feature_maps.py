"""Feature maps of trained networks: chosen by rules, small, without photographs."""

from __future__ import annotations

import base64
import io
import json

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import hamburger as hb
from hamburger.cli.app import app
from hamburger.errors import DataError, HamburgerError, OptionError
from hamburger.segmentation import Info, save_weights
from hamburger.segmentation.data import create_dataset
from hamburger_lab.claims.feature_maps import channel_entries, feature_maps_html, make_feature_maps

OPTIONS = {"size": 16, "length": 4}
CLASSES = create_dataset("patchwork", "val").classes


def saved(path, context):
    net = hb.create_model("hamnet", backbone="tiny", output_stride=4, num_classes=10, context=context,
                          head_options={"width": 16})  # fmt: skip
    extra = {"data": "patchwork", "data_options": OPTIONS}
    path.mkdir()
    save_weights(path / "best.safetensors", net, Info(classes=CLASSES, extra=extra))
    return path


def opened(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_channels_are_evenly_spaced_by_energy():
    before = torch.arange(11.0)[:, None, None].expand(11, 3, 4)
    result = channel_entries(before, 2 * before)
    assert [one["place"] for one in result] == [1, 3, 5, 7, 9, 11]
    assert [one["sizes"] for one in result] == [[x, 2 * x] for x in (10, 8, 6, 4, 2, 0)]
    assert opened(result[0]["maps"]).size == (4 + 1 + 4, 3)


def test_feature_maps_command_writes_what_the_page_shows(tmp_path):
    runs = [saved(tmp_path / name, name) for name in ("nmf", "sa")]
    target = tmp_path / "feature_maps_patchwork_cpu.json"
    result = CliRunner().invoke(app, ["feature-maps", *map(str, runs), "--json", str(target), "--images", "2"])
    assert result.exit_code == 0, result.output
    study = json.loads(target.read_text())
    assert [(entry["run"], len(entry["atoms"])) for entry in study["entries"]] == [("nmf", 6)] * 2 + [("sa", 0)] * 2
    shares = [one["share"] for one in study["entries"][0]["atoms"]]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 1 + 1e-6
    assert opened(study["entries"][0]["pixels"]).size == (16, 16)
    assert str(tmp_path) not in target.read_text()
    text = feature_maps_html("feature_maps_x", study)
    assert text.count("<img") == 4 * 7 + 2 * 6


def test_a_network_without_a_context_is_refused(tmp_path):
    run = saved(tmp_path / "lightham", None)
    net = hb.create_model("lightham", backbone="tiny", output_stride=4, num_classes=10)
    save_weights(run / "best.safetensors", net, Info(classes=CLASSES, extra={"data": "patchwork"}))
    with pytest.raises(OptionError, match="has no context; leave it out"):
        make_feature_maps([run])


@pytest.mark.parametrize("extra", [{}, {"data": "x"}, {"data": "patchwork", "data_options": {"root": "/etc"}}])
def test_weights_that_describe_no_data_are_refused(extra, tmp_path):
    path = saved(tmp_path / "run", "nmf") / "best.safetensors"
    save_weights(path, hb.load(path), Info(classes=CLASSES, extra=extra))
    with pytest.raises(HamburgerError, match=rf"{path}"):
        make_feature_maps([path])


@pytest.mark.parametrize(
    "change",
    [{"channels": []}, {"sizes": "x"}, {"maps": 5}, {"maps": '"><script>'}, {"maps": "https://example.org/a.png"}],
    ids=str,
)
def test_a_study_by_somebody_else_is_refused(change):
    channel = {"place": 1, "of": 1, "sizes": [1, 2], "maps": "data:image/png;base64,", **change}
    entry = {"run": "a", "image": "b", "pixels": None, "channels": change.get("channels", [channel]), "atoms": []}
    with pytest.raises(DataError, match=r"feature_maps_x\.json was not written by `ham feature-maps`"):
        feature_maps_html("feature_maps_x", {"data": "patchwork", "entries": [entry]})


def test_a_study_adds_no_markup_to_the_page():
    channel = {"place": 1, "of": 1, "sizes": [1, 2], "maps": 'data:image/png;"><script>'}
    entry = {"run": "<b>", "image": "b", "pixels": None, "channels": [channel], "atoms": []}
    text = feature_maps_html("feature_maps_x", {"data": "<script>", "entries": [entry]})
    assert "<script>" not in text and "<b>" not in text
