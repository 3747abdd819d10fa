"""The experiment scripts run end to end at toy size and write the documented rows."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import fake_datasets
import numpy as np
import pytest
import torch
from PIL import Image

import hamburger as hb
from hamburger.classification.data import open_source
from hamburger.detection.data.coco import CocoSet
from hamburger.detection.model import create_detector
from hamburger.segmentation.recipe import ANIMALS, check_segmentation_recipe
from hamburger_lab.pages.detection import detection_size_table, detection_table
from hamburger_lab.pages.hams import carried_table, costs_table
from hamburger_lab.pages.sharded import message_ms, time_table

SCRIPTS = Path(__file__).parents[3] / "lab" / "experiments"
ENVIRONMENT = {"hardware", "torch", "commit", "date", "device"}


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = fake_datasets.folder(tmp_path_factory.mktemp("voc"), ids=5, classes="\n".join(ANIMALS) + "\n")
    for name in ("train_aug", "animals_train"):
        fake_datasets.write_list(root / f"{name}.txt", [f"img{i}" for i in range(4)])
    for name in ("val", "animals_val"):
        fake_datasets.write_list(root / f"{name}.txt", ["img4"])
    return root


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_voc_352_writes_one_row_per_cell_and_seed(data, tmp_path):
    script = load_script("voc_352")
    target, labels = tmp_path / "rows.jsonl", tmp_path / "labels.tar"
    options = ["--data", str(data), "--out", str(tmp_path / "runs"), "--json", str(target), "--tiny", "--steps", "10"]
    script.main(["nmf", *options, "--labels", str(labels), "--other-steps", "1,2"])
    script.main(["nmf", *options, "--other-steps", "3"])  # finished: evaluated again, its row replaced
    script.main(["none", *options])
    nmf, none = read_rows(target)
    assert (nmf["cell"], none["cell"]) == ("nmf", "none") and nmf["seed"] == 0
    assert [point["step"] for point in nmf["learning_curve"]] == list(range(1, 11))
    assert set(nmf["other_steps"]) == {"3"} and none["other_steps"] == {}
    for scores in (nmf["single"], nmf["multi"], nmf["other_steps"]["3"]):
        assert set(scores["per_class"]) == set(ANIMALS)
        assert len(scores["confusion"]) == len(ANIMALS) and sum(map(sum, scores["confusion"])) > 0
    assert nmf["multi"]["protocol"] == "scales 0.5,0.75,1,1.25,1.5,1.75, flip"
    assert nmf.keys() >= ENVIRONMENT
    with tarfile.open(labels) as archive:
        assert archive.getnames() == ["img4.png"]


def test_cells_of_voc_352_are_contexts_or_whole_heads():
    script = load_script("voc_352")
    recipes = {cell: script.build_recipe(cell, 3, pretrained=None, steps=None, tiny=True) for cell in script.CELLS}
    assert recipes["pspnet"].model.name == "pspnet" and recipes["pspnet"].model.context is None
    assert recipes["sa-flash"].model.context == "sa" and recipes["sa-flash"].model.name == "hamnet"
    assert all(recipe.seed == 3 and recipe.steps == 22_500 for recipe in recipes.values())
    for recipe in recipes.values():
        check_segmentation_recipe(recipe)


@pytest.fixture
def instances(tmp_path):
    """Five images of 24 x 32 pixels with a cat, a dog, a second cat and an object of void pixels only."""
    data = tmp_path / "voc"
    label, objects = np.zeros((2, 24, 32), np.uint8)
    for index, (value, rows, columns) in enumerate(
        [(1, slice(2, 12), slice(3, 9)), (2, slice(6, 20), slice(12, 22)), (1, slice(0, 8), slice(24, 32))]
    ):
        label[rows, columns], objects[rows, columns] = value, index + 1
    label[2, 3] = 255  # void inside the first cat
    label[22:, :4], objects[22:, :4] = 255, 9
    for i in range(5):
        fake_datasets.write_image(data / "images" / f"img{i}.png", size=(24, 32))
        for folder, values in (("labels", label), ("objects", objects)):
            (data / folder).mkdir(exist_ok=True)
            Image.fromarray(values).save(data / folder / f"img{i}.png")
    fake_datasets.write_list(data / "train.txt", [f"img{i}" for i in range(4)])
    fake_datasets.write_list(data / "val.txt", ["img4"])
    (data / "classes.txt").write_text("background\ncat\ndog\n")
    return data


def test_voc_instances_converts_objects_to_coco(instances, tmp_path):
    script = load_script("voc_instances")
    script.convert_objects(instances, tmp_path / "coco")
    content = json.loads((tmp_path / "coco" / "annotations" / "instances_val.json").read_text())
    assert content["images"] == [{"id": 0, "file_name": "img4.png", "height": 24, "width": 32}]
    assert content["categories"] == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    actual = [(each["category_id"], each["bbox"], each["area"]) for each in content["annotations"]]
    assert actual == [(1, [3, 2, 6, 10], 59), (2, [12, 6, 10, 14], 140), (1, [24, 0, 8, 8], 64)]
    split = CocoSet("val", root=tmp_path / "coco")
    assert split.problems() == [] and not split[0].masks[0, 2, 3] and split[0].masks[1, 6:20, 12:22].all()


def test_voc_instances_writes_one_row_per_cell_and_seed(instances, tmp_path):
    script = load_script("voc_instances")
    target = tmp_path / "rows.jsonl"
    options = ["--data", str(instances), "--out", str(tmp_path / "runs"), "--json", str(target), "--tiny", "--steps=10"]
    script.main(["nmf", *options])
    script.main(["nmf", *options])  # finished: evaluated again, its row replaced
    script.main(["none", *options])
    nmf, none = read_rows(target)
    assert (nmf["cell"], none["cell"], nmf["context"], none["context"]) == ("nmf", "none", "nmf", None)
    assert [point["step"] for point in nmf["learning_curve"]] == [2, 4, 6, 8, 10]
    assert nmf["images"] == 1 and nmf["after"] == "p3" and none["after"] is None
    assert set(nmf["per_class"]) == set(nmf["box_per_class"]) == {"cat", "dog"}
    assert nmf["box"].keys() >= {"map_small", "map_medium", "map_large"} and nmf["mask"]["map_large"] is None
    assert nmf.keys() >= ENVIRONMENT | {"images_per_s", "peak_mb", "protocol"} and "best_step" not in nmf
    assert detection_table([nmf, none]).count("| 1 |") == detection_size_table([nmf, none]).count("| 1 |") == 2


def test_voc_instances_scores_images_of_one_size_together(tmp_path):
    """The order of the images is kept, and detections do not depend on the batch."""
    script = load_script("voc_instances")
    sizes = [(24, 32), (32, 24), (24, 32)]
    entries = [{"id": i, "file_name": f"{i}.png", "height": h, "width": w} for i, (h, w) in enumerate(sizes)]
    for entry in entries:
        fake_datasets.write_image(tmp_path / "images" / entry["file_name"], size=(entry["height"], entry["width"]))
    content = {"images": entries, "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "val.json").write_text(json.dumps(content))
    split = CocoSet("val", root=tmp_path, empty="keep")
    config = {"size": 32, "max_size": 32, "anchor": 8, "channels": 16, "hidden": 16, "proposals": 20}
    net = create_detector("tiny", num_classes=1, **config)
    net.net.roi_heads.score_thresh = 0.0
    together = script.detect(net, split, [0, 1, 2], device=torch.device("cpu"), workers=0)
    alone = [script.detect(net, split, [i], device=torch.device("cpu"), workers=0)[0] for i in range(3)]
    assert [image.id for image in together] == [0, 1, 2] and [image.size for image in together] == sizes
    for one, other in zip(together, alone, strict=True):
        assert len(one.detections) == len(other.detections) > 0
        scores = [[each["score"] for each in image.detections] for image in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_bptt_collapse_writes_gradient_norms(data, tmp_path, capsys):
    script = load_script("bptt_collapse")
    target, series = tmp_path / "rows.jsonl", tmp_path / "series.json"
    options = ["--data", str(data), "--json", str(target), "--tiny", "--steps", "2"]
    for cell in ("vq-plain", "cd-clip1", "vq-cnorm-all", "cd-frozenbn", "vq-value1", "cd-gamma0"):
        script.main([cell, *options, "--series", str(series)])
    rows = {row["cell"]: row for row in read_rows(target)}
    assert len(rows) == 6
    committed = read_rows(SCRIPTS.parents[1] / "results" / "bptt_voc-animals_h200.jsonl")[0]
    for row in rows.values():
        assert row.keys() >= committed.keys()
        assert row["gradient_norms"].keys() == committed["gradient_norms"].keys()
        assert row["failure"] is None and 0 < sum(row["predicted_share"].values()) == pytest.approx(1, abs=1e-3)
    assert rows["cd-clip1"]["changed"] == {"optim": {"clip": 1.0}}
    steps = json.loads(series.read_text())
    assert {len(values) for values in steps.values()} == {2}
    assert rows["cd-gamma0"]["gradient_norms"]["ham_out"]["max"] > 0  # gamma opens at the first update
    capsys.readouterr()
    script.main(["--list"])
    assert capsys.readouterr().out.split() == script.CELLS
    assert set(script.CELLS) == {
        row["cell"] for row in read_rows(SCRIPTS.parents[1] / "results" / "bptt_voc-animals_h200.jsonl")
    }


def test_voc_352_labels_scores_every_object_by_its_size(tmp_path):
    load_script("voc_352")
    script = load_script("voc_352_labels")
    for folder in ("labels", "objects"):
        (tmp_path / folder).mkdir()
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    (tmp_path / "val.txt").write_text("a\n")
    truth = np.zeros((10, 20), np.uint8)
    truth[:5, :10], truth[9, 18:] = 1, 2  # a cat of 50 pixels (25 %), a dog of 2 (1 %)
    objects = np.where(truth == 2, 7, truth)
    truth[0, 0] = 255  # void: belongs to no object
    predicted = np.where(truth == 2, 1, truth)
    predicted[:5, 8:10] = 0  # 10 of the cat's remaining 49 pixels
    predicted[0, 0] = 2
    for folder, values in (("labels", truth), ("objects", objects)):
        Image.fromarray(values).save(tmp_path / folder / "a.png")
    Image.fromarray(predicted).save(tmp_path / "a.png")
    with tarfile.open(tmp_path / "maps.tar", "w") as archive:
        archive.add(tmp_path / "a.png", "a.png")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"cell": "nmf", "seed": 0}\n')
    script.main([str(tmp_path / "maps.tar"), "--cell=nmf", "--seed=0", f"--data={tmp_path}", f"--json={rows}"])
    (row,) = read_rows(rows)
    sizes = {size: (counts["objects"], counts["mean_recall"]) for size, counts in row["objects"].items()}
    assert sizes["above 20 %"] == (1, 39 / 49) and sizes["below 1 %"] == (1, 0.0)
    assert sizes["1 to 5 %"] == sizes["5 to 20 %"] == (0, None)
    # IoU by hand: background 148 / 158, cat 39 / (39 + 10 missed + 2 of the dog), dog 0
    assert row["single"]["miou"] == pytest.approx((148 / 158 + 39 / 51 + 0) / 3)


def test_cifar10_sheets_become_batches(tmp_path):
    sheet = np.random.default_rng(0).integers(0, 256, (1600, 1600, 3), dtype=np.uint8)
    for split, count in (("train", 2400), ("test", 2500)):
        Image.fromarray(sheet).save(tmp_path / f"{split}_00.jpg", quality=90)
        np.save(tmp_path / f"{split}_labels.npy", (np.arange(count) % 10).astype(np.uint8))
    load_script("cifar10_sheets").main([str(tmp_path), str(tmp_path / "batches")])
    source = open_source("cifar10", "train", size=32, root=tmp_path / "batches")
    images, labels = (np.concatenate(parts) for parts in zip(*map(source.read, range(len(source))), strict=True))
    tiles = np.array(Image.open(tmp_path / "train_00.jpg"))
    assert images.shape == (2400, 3, 32, 32) and labels[51] == 1
    np.testing.assert_array_equal(images[51], tiles[32:64, 32:64].transpose(2, 0, 1))


@pytest.mark.full
def test_sharded_messages_records_what_the_page_needs(tmp_path):
    target = tmp_path / "rows.jsonl"
    sizes = ["--processes", "2,3", "--positions", "4,9", "--channels", "32", "--rank", "4", "--steps", "3"]
    command = [sys.executable, "-W", "ignore", SCRIPTS / "sharded_messages.py", "--json", target, *sizes]
    subprocess.run(command, check=True, timeout=300)
    rows = read_rows(target)
    assert len(rows) == 12 and rows[0].keys() >= ENVIRONMENT
    expected = {"nmf": 4 * (32 * 4 + 4 * 4), "vq": 4 * (32 * 4 + 4), "cd": 4 * (32 * 4 + 4)}
    for row in rows:
        assert row["forward"][:4] == [["broadcast", 4 * 32 * 4], *[["all_reduce", expected[row["ham"]]]] * 3]
        assert len(row["forward"]) == 6 and len(row["backward"]) == 2  # of batch norm


def test_modelled_times_grow_with_the_hops_between_machines():
    inside, machines, more = (message_ms("all_reduce", 147_456, gpus) for gpus in (8, 64, 1_024))
    assert inside == pytest.approx((10 + 2 * (3 * 3 + 147_456 / 300e3)) / 1e3)
    assert more - machines == pytest.approx(2 * 4 * 8 / 1e3)  # four more levels of a tree
    assert message_ms("broadcast", 0, 1_024) == pytest.approx((10 + 3 * 3 + 7 * 8) / 1e3)


def test_messages_that_differ_between_processes_raise():
    row = {"ham": "nmf", "d": 8, "r": 2, "steps": 1, "b": 1, "processes": 2, "forward": [["all_reduce", 80]]}
    with pytest.raises(ValueError, match="messages of nmf depend on the processes"):
        time_table([row, row | {"processes": 4, "forward": [["all_reduce", 88]]}], [])


def test_carried_dictionary_writes_the_rows_of_the_page(tmp_path):
    target = tmp_path / "rows.jsonl"
    load_script("carried_dictionary").main(["--json", str(target), "--frames", "3", "--most-steps", "2"])
    rows = read_rows(target)
    assert len(rows) == 3 * 2 * 3 * 2 * 2 and rows[0].keys() >= ENVIRONMENT
    assert all(0 < row["error"] < 1 for row in rows)
    errors = {(row["init"], row["steps"]): row["error"] for row in rows if row["ham"] == "nmf"}
    assert errors["carry", 1] < errors["fixed", 1]
    assert len(carried_table(rows).splitlines()) == 2 + 6 + 2


def test_carried_steps_are_the_fewest_that_match_the_most_fixed_steps():
    size = {"ham": "nmf", "speed": 2, "photo": "p", "frames": 2, "d": 1, "n": 1, "r": 1, "hardware": "CPU"}
    errors = {"fixed": (0.5, 0.4, 0.3), "carry": (0.35, 0.29, 0.2)}
    rows = [size | {"init": i, "steps": k + 1, "error": e[k]} for i, e in errors.items() for k in range(3)]
    assert "| nmf | 2 | 0.500 | 0.300 | 0.350 | 0.200 | 2 |" in carried_table(rows)
    worse = [row | {"error": 0.9} if row["init"] == "carry" else row for row in rows]
    assert "| 0.900 | none |" in carried_table(worse)


def test_columns_measures_errors_and_times(data, tmp_path, monkeypatch):
    script = load_script("columns")
    monkeypatch.setattr(script, "RANK", 4)
    errors, times = tmp_path / "errors.jsonl", tmp_path / "times.jsonl"
    options = ["--images", str(data / "images"), "--count", "2", "--side", "40", "--steps", "0,2"]
    script.main(
        [*options, "--errors", str(errors), "--times", str(times), "--sizes", "9", "--repeats", "2", "--width", "8"]
    )
    rows = read_rows(errors)
    assert {row["stage"] for row in rows} == {"layer1", "layer2", "layer3", "layer4", "bread"}
    by_case = {(row["stage"], row["ham"], row["init"], row["steps"]): row for row in rows}
    assert len(by_case) == len(rows) == 5 * 3 * 2 * 2
    for row in rows:
        assert row["weights"] == "random" and len(row["errors"]) == row["images"] == 2 and row.keys() >= ENVIRONMENT
        assert 0 < row["error"] < 1.5
    start = by_case["layer4", "nmf", "columns", 0]["error"]
    assert by_case["layer4", "nmf", "columns", 2]["error"] < start < by_case["layer4", "nmf", "random", 0]["error"]
    assert [(row["ham"], row["init"], row["steps"]) for row in read_rows(times)] == [
        (ham, *variant) for ham in ("nmf", "vq", "cd") for variant in (("random", 6), ("columns", 2))
    ]


def test_cpu_products_compares_libraries(tmp_path):
    script, target = load_script("cpu_products"), tmp_path / "rows.jsonl"
    threads = torch.get_num_threads()
    script.main(["--sizes", "70", "--repeats", "2", "--json", str(target)])
    torch.set_num_threads(threads)
    rows = read_rows(target)
    assert len(rows) == 3 * 2 * 2 * (2 + 3) and torch.backends.mkldnn.enabled
    for row in rows:
        assert row.keys() >= ENVIRONMENT
        assert (row["ms"] is None) == (row["input"] == "clusters") and (row["mode"] == "train") == (not row["residual"])
        if row["mode"] == "infer":
            assert 0 < row["error"] < (1e-5 if row["ham"] == "nmf" and row["dtype"] == "float32" else 0.5)


@pytest.mark.full
def test_deploy_cpu_compares_runtimes(tmp_path):
    script, target = load_script("deploy_cpu"), tmp_path / "rows.jsonl"
    script.main(["--side", "65", "--threads", "1,2", "--repeats", "2", "--json", str(target)])
    rows = read_rows(target)
    names = [(row["runtime"], row["dtype"]) for row in rows if row["threads"] == 1]
    assert names[:6] == [(name, dtype) for name in script.TORCH for dtype in ("float32", "bfloat16")]
    assert len(rows) == 2 * len(names)
    for row in rows:
        assert row.keys() >= ENVIRONMENT and row["ms"] > 0 and row["difference"] <= script.TOLERANCE[row["dtype"]]


def test_ham_costs_measures_every_ham(data, tmp_path, monkeypatch):
    script, target = load_script("ham_costs"), tmp_path / "rows.jsonl"
    monkeypatch.setattr(script, "RANK", 4)
    monkeypatch.setattr(script, "WIDTH", 8)
    for options in (["--images", str(data / "images")], []):
        script.main(
            [*options, "--count", "2", "--side", "40", "--steps", "1,3", "--repeats", "2", "--json", str(target)]
        )
        rows = read_rows(target)
        assert [(row["ham"], row["steps"]) for row in rows] == [(name, k) for name in hb.hams.names() for k in (1, 3)]
        for row in rows:
            assert row.keys() >= ENVIRONMENT and row["grid"] == [5, 5] and row["n"] == 25 and row["threads"] == 1
            assert 0 < row["error"] < 1 and 0 < row["objective"] < 1.5 and row["ms"] > 0
        by_case = {(row["ham"], row["steps"]): row for row in rows}
        assert by_case["hals", 3]["objective"] < by_case["nmf", 3]["objective"] < by_case["nmf", 1]["objective"]
    assert "| `windowed` | 0." in costs_table(rows)
    with pytest.raises(SystemExit):
        script.main(["--count", "4", "--repeats", "2", "--json", str(target)])


def test_hamformer_profiles_tokens_as_numpy_does():
    script = load_script("hamformer")
    x = torch.randn(2, 6, 3, 4)
    expected = []
    for tokens in x.flatten(2).mT.double().numpy():
        unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        cosines = unit @ unit.T
        expected.append(cosines[~np.eye(12, dtype=bool)].mean())
    assert np.allclose(script.token_similarity(x), expected)
    assert script.token_similarity(torch.ones(1, 4, 3, 3)) == pytest.approx(1)


def test_hamformer_writes_the_speed_of_every_mixer(tmp_path):
    script = load_script("hamformer")
    target = tmp_path / "speed.jsonl"
    few = ["--tokens", "32", "--depth", "1", "--repeats", "2", "--device", "cpu", "--mixers", "none,nmf-wide,sa"]
    script.main(["--speed", str(target), "--sizes", "16", *few])
    before = target.read_text()
    script.main(["--speed", str(target), "--sizes", "16,4", *few])
    assert target.read_text().startswith(before)
    rows = read_rows(target)
    assert [(row["mixer"], row["n"]) for row in rows] == [(m, n) for n in (16, 4) for m in ("none", "nmf-wide", "sa")]
    counts = {row["mixer"]: row["parameters"] for row in rows[:3]}
    # equal to attention but for the bias of the lower bread, twice as wide as the network
    assert counts["nmf-wide"] == counts["sa"] + 2 * 192
    assert all(row["train_ms"] > 0 and row["train_mb"] is None and row.keys() >= ENVIRONMENT for row in rows)


@pytest.mark.full
def test_hamformer_trains_and_profiles_every_mixer(tmp_path):
    script = load_script("hamformer")
    target = tmp_path / "rows.jsonl"
    small = ("steps=4", "eval_every=4", "data.options.length=16", "batch=8")
    options = ["--recipes", "hamformer-figures", "--mixers", "none,nmf", "--json", str(target), "--images", "4"]
    options += ["--out", str(tmp_path / "runs"), *(word for setting in small for word in ("--set", setting))]
    script.main([*options, "--seeds", "0"])
    before = target.read_text()
    script.main([*options, "--seeds", "0,1"])
    assert target.read_text().startswith(before)
    rows = read_rows(target)
    assert [(row["context"], row["seed"]) for row in rows] == [("none", 0), ("nmf", 0), ("none", 1), ("nmf", 1)]
    for row in rows:
        assert len(row["similarity"]) == len(row["effective_rank"]) == 3 and row.keys() >= ENVIRONMENT
        assert all(1 <= rank <= 32 for rank in row["effective_rank"])
