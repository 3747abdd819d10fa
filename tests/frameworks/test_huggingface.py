"""Our networks in Hugging Face transformers: Auto classes, pipeline, Trainer, and folders of strangers."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import hamburger as hb
from hamburger.segmentation import Info, Segmenter
from hamburger.training.image_files import normalise

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed; pip install '.[huggingface]'", allow_module_level=True)

import transformers
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoModelForSemanticSegmentation, pipeline

from hamburger import huggingface

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

INFO = Info(
    classes=("sky", "wall", "dog"),
    palette=((0, 0, 0), (1, 2, 3), (255, 0, 9)),
    mean=(0.4, 0.5, 0.6),
    std=(0.2, 0.3, 0.25),
    side=48,
)
OPTIONS = {"backbone": "tiny", "output_stride": 4, "head_options": {"width": 16}}


def network():
    torch.manual_seed(3)
    net = hb.create_model("hamnet", num_classes=3, **OPTIONS)
    net(torch.randn(2, 3, 16, 16))  # running statistics away from where a fresh network has them
    return net.eval()


def photo(height=40, width=64):
    pixels = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Image.fromarray(pixels.numpy())


@pytest.fixture
def folder(tmp_path):
    network().save_pretrained(tmp_path / "shared", info=INFO)
    return tmp_path / "shared"


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_auto_classes_load_a_shared_folder(folder):
    net, x = network(), torch.randn(2, 3, 33, 21)
    model = AutoModelForSemanticSegmentation.from_pretrained(folder)
    assert type(model) is huggingface.HamburgerForSemanticSegmentation and not model.training
    assert torch.equal(model(x).logits, net(x))
    assert model.config.id2label == {0: "sky", 1: "wall", 2: "dog"} and model.config.label2id["dog"] == 2
    assert model.as_segmenter().info == Segmenter.from_pretrained(folder).info
    assert torch.equal(model(x, return_dict=False)[0], net(x))
    direct = huggingface.HamburgerForSemanticSegmentation.from_pretrained(str(folder), dtype=torch.float64)
    assert direct.dtype == torch.float64 and direct(x.double()).logits.dtype == torch.float64


def test_saved_models_load_in_transformers_and_in_hamburger(folder, tmp_path):
    x = torch.randn(1, 3, 20, 28)
    model = AutoModelForSemanticSegmentation.from_pretrained(folder)
    with torch.no_grad():
        model.head.classifier[-1].weight.add_(1)
    model.save_pretrained(tmp_path / "again")
    expected = model(x).logits
    assert not torch.equal(expected, network()(x))
    again, report = AutoModelForSemanticSegmentation.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert torch.equal(again(x).logits, expected) and not any(report.values())
    assert torch.equal(hb.load(tmp_path / "again")(x), expected)
    assert Segmenter.from_pretrained(tmp_path / "again").info == Segmenter.from_pretrained(folder).info
    model.config.save_pretrained(tmp_path / "config")
    assert AutoConfig.from_pretrained(tmp_path / "config").as_info() == model.config.as_info()


def test_repositories_are_downloaded_and_uploaded(folder, monkeypatch):
    asked = {}

    def download(repository, name, **options):
        asked.update(options, repository=repository)
        return folder / name

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    config, x = AutoConfig.from_pretrained(folder), torch.randn(1, 3, 20, 28)
    model = huggingface.HamburgerForSemanticSegmentation.from_pretrained(
        "someone/net", config=config, revision="abc", token="t", force_download=None
    )
    assert asked == {"repository": "someone/net", "revision": "abc", "token": "t"}
    assert torch.equal(model(x).logits, network()(x))

    class Api:
        def __init__(self, **options):
            pass

        def create_repo(self, repo_id, **options):
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, *, folder_path, **options):
            self.__class__.files = {path.name for path in Path(folder_path).iterdir()}
            return "https://hub/commit"

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    assert model.push_to_hub("someone/net", private=True) == "https://hub/commit"
    assert {"config.json", "model.safetensors", "preprocessor_config.json"} <= Api.files


def test_new_networks_are_built_from_a_config():
    config = huggingface.HamburgerConfig(OPTIONS, classes=("a", "b"))
    model = AutoModelForSemanticSegmentation.from_config(config)
    assert model(torch.rand(1, 3, 16, 24)).logits.shape == (1, 2, 16, 24)
    torch.manual_seed(0)
    direct = huggingface.HamburgerForSemanticSegmentation(config)
    torch.manual_seed(0)
    ours = hb.create_model("hamnet", num_classes=2, **OPTIONS)
    for (name, a), b in zip(direct.state_dict().items(), ours.state_dict().values(), strict=True):
        assert torch.equal(a, b), f"{name}: transformers initialised it again"


def test_processor_and_pipeline_label_like_the_predictor(folder, capfd):
    processor, image = AutoImageProcessor.from_pretrained(folder), photo(60, 96)
    pixels = torch.tensor(np.array(image)).movedim(2, 0)
    expected = hb.Predictor(network(), INFO)(pixels)
    model = AutoModelForSemanticSegmentation.from_pretrained(folder)
    inputs = processor(image, return_tensors="pt")
    assert inputs["pixel_values"].shape == (1, 3, 30, 48)
    labels = processor.post_process_semantic_segmentation(model(**inputs), target_sizes=[(60, 96)])
    assert torch.equal(labels[0], expected.long())
    assert processor.post_process_semantic_segmentation(model(**inputs))[0].shape == (30, 48)

    for segmenter in (
        pipeline("image-segmentation", model=model, image_processor=processor),
        pipeline("image-segmentation", model=str(folder)),
    ):
        masks = {entry["label"]: torch.tensor(list(entry["mask"].tobytes())).view(60, 96) for entry in segmenter(image)}
        assert set(masks) == {INFO.classes[k] for k in expected.unique()}
        for name, mask in masks.items():
            assert torch.equal(mask == 255, expected == INFO.classes.index(name))
    assert "not supported" not in capfd.readouterr().err


def test_processor_makes_training_batches(folder, tmp_path):
    processor = AutoImageProcessor.from_pretrained(folder)
    images, labels = [photo(40, 64), photo(20, 32)], [torch.zeros(40, 64).long(), torch.full((20, 32), 255)]
    labels[0][:20] = 2
    batch = processor(images, labels, return_tensors="pt")
    assert batch["pixel_values"].shape == (2, 3, 30, 48) and batch["labels"].shape == (2, 30, 48)
    assert batch["labels"].unique().tolist() == [0, 2, 255] and (batch["labels"][0, :15] == 2).all()
    array = torch.arange(3 * 4 * 5, dtype=torch.uint8).view(3, 4, 5)
    plain = huggingface.HamburgerImageProcessor(INFO.mean, INFO.std)
    for same in (array, array.movedim(0, 2).numpy(), [array]):
        assert torch.equal(plain(same, return_tensors="pt")["pixel_values"][0], normalise(array, INFO.mean, INFO.std))
    square = plain([photo(40, 64), photo(64, 40)], size={"height": 16, "width": 24}, return_tensors="pt")
    assert square["pixel_values"].shape == (2, 3, 16, 24)
    processor.save_pretrained(tmp_path)
    again = AutoImageProcessor.from_pretrained(tmp_path)
    assert (again.size, again.image_mean, again.image_std) == ({"longest_edge": 48}, [*INFO.mean], [*INFO.std])


def test_loss_trains_the_network(folder):
    model = AutoModelForSemanticSegmentation.from_pretrained(folder).train()
    x, labels = torch.randn(2, 3, 33, 21), torch.randint(3, (2, 33, 21))
    labels[:, :5] = 255
    net = network().train()
    torch.manual_seed(1)
    outputs = model(x, labels=labels)
    torch.manual_seed(1)
    torch.testing.assert_close(outputs.loss, sum(net(x, labels).values()))
    assert outputs.logits.shape == (2, 3, 33, 21)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    optimizer.step()
    torch.manual_seed(1)
    assert model(x, labels=labels).loss < outputs.loss


def test_other_classes_start_anew(folder):
    with pytest.raises(hb.CheckpointError, match=r"has 3 classes \(got num_labels=5\); pass ignore_mismatched_sizes"):
        AutoModelForSemanticSegmentation.from_pretrained(folder, num_labels=5)
    model, report = AutoModelForSemanticSegmentation.from_pretrained(
        folder, id2label={0: "a", 1: "b"}, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert model(torch.rand(1, 3, 16, 16)).logits.shape == (1, 2, 16, 16)
    fresh = set(report["mismatched_keys"])
    assert fresh and all("classifier" in name for name in fresh)
    for name, value in network().state_dict().items():
        assert name in fresh or torch.equal(model.state_dict()[name], value)
    assert model.as_segmenter().info.classes == ("a", "b")


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs accelerate; pip install accelerate")
def test_trainer_trains_saves_and_resumes(folder, tmp_path):
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    data = [{"pixel_values": image, "labels": (image[0] > 0.5).long()} for image in images]

    def train(steps, **options):
        arguments = transformers.TrainingArguments(
            tmp_path / "run", max_steps=steps, save_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True,
            learning_rate=0.01, disable_tqdm=True, dataloader_pin_memory=False, lr_scheduler_type="constant",
        )  # fmt: skip
        model = AutoModelForSemanticSegmentation.from_pretrained(folder)
        trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data)
        trainer.train(**options)
        return trainer

    train(2)
    saved = Segmenter.from_pretrained(tmp_path / "run" / "checkpoint-2")
    assert not torch.equal(
        saved.state_dict()["head.classifier.1.weight"], network().state_dict()["head.classifier.1.weight"]
    )
    resumed = train(4, resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert resumed.state.global_step == 4
    assert resumed.evaluate()["eval_loss"] > 0
    assert resumed.predict(data).predictions.shape == (4, 3, 16, 16)


# -- folders of strangers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trusted", [None, False])  # with True, transformers itself runs what a folder names
def test_code_in_a_folder_is_not_executed(trusted, folder, tmp_path):
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'executed')!r}).touch()\n"
    (folder / "evil.py").write_text(code + "class Evil: pass\n")
    classes = ("AutoConfig", "AutoModelForSemanticSegmentation", "AutoImageProcessor")
    for name in ("config.json", "preprocessor_config.json"):
        edit(
            folder / name,
            auto_map=dict.fromkeys(classes, "evil.Evil"),
            custom_pipelines={"x": {"impl": "evil.Evil"}},
        )
    model = AutoModelForSemanticSegmentation.from_pretrained(folder, trust_remote_code=trusted)
    assert not hasattr(model.config, "auto_map") and not hasattr(model.config, "custom_pipelines")
    processor = AutoImageProcessor.from_pretrained(folder, trust_remote_code=trusted)
    assert type(processor) is huggingface.HamburgerImageProcessor
    assert pipeline("image-segmentation", model=str(folder), trust_remote_code=trusted)(photo())
    assert not (tmp_path / "executed").exists()


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(hb.CheckpointError, match=r"has no model\.safetensors"):
        AutoModelForSemanticSegmentation.from_pretrained(folder)


MODEL = {"name": "hamnet", **OPTIONS}
HOSTILE = {
    "source of weights": ({"model": {**MODEL, "pretrained": "/etc/passwd"}}, "pretrained must be empty"),
    "hub name": ({"model": {**MODEL, "backbone": "timm:hf-hub:x/y"}}, "name of an architecture"),
    "timm option": (
        {"model": {**MODEL, "backbone": "timm:resnet18", "backbone_options": {"pretrained_cfg": {}}}},
        "not an option of timm",
    ),
    "large number": ({"model": {**MODEL, "head_options": {"width": 10**9}}}, "must be a number of at most"),
    "another network": ({"model": {**MODEL, "output_stride": 8}}, r"different networks \(model.output_stride\)"),
    "control characters": ({"id2label": {"0": "a\x1b[2J", "1": "b", "2": "c"}}, "printable"),
    "more classes": ({"id2label": {str(k): "a" for k in range(3000)}}, "has 3 classes"),
    "countless classes": ({"model": {**MODEL, "num_classes": 10**10}, "classes": [], "id2label": None}, "at most 1.04"),
    "mean": ({"mean": [1e9, 0, 0]}, "mean must be three numbers"),
    "side": ({"side": 10**6}, "side must be"),
    "not a mapping": ({"model": [1]}, "cannot be read"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_configs_are_refused(case, folder):
    fields, message = HOSTILE[case]
    edit(folder / "config.json", **fields)
    with pytest.raises(hb.CheckpointError, match=message):
        AutoModelForSemanticSegmentation.from_pretrained(folder)


@pytest.mark.parametrize(
    "fields",
    [{"size": {"longest_edge": 10**6}}, {"size": {"shortest_edge": 3}}, {"image_std": [0, 1, 1]}, {"size": [3]}],
)
def test_hostile_processors_are_refused(fields, folder):
    edit(folder / "preprocessor_config.json", **fields)
    with pytest.raises(hb.HamburgerError, match="HamburgerImageProcessor"):
        AutoImageProcessor.from_pretrained(folder)


def test_unknown_options_are_named(folder):
    for options in ({"device_map": "auto"}, {"quantization_config": {"load_in_8bit": True}}):
        with pytest.raises(hb.OptionError, match=f"the option '{next(iter(options))}' is not supported"):
            AutoModelForSemanticSegmentation.from_pretrained(folder, **options)
    processor = AutoImageProcessor.from_pretrained(folder)
    with pytest.raises(hb.InputError, match=r"one size after resizing \(got \[\(30, 48\), \(48, 30\)\]\)"):
        processor([photo(40, 64), photo(64, 40)], return_tensors="pt")
    with pytest.raises(hb.InputError, match=r"uint8 array .*\(got torch.float32"):
        processor(torch.rand(3, 4, 5))
    with pytest.raises(hb.InputError, match=r"the labels must be a tensor of torch\.int64"):
        AutoModelForSemanticSegmentation.from_pretrained(folder)(torch.rand(1, 3, 8, 8), torch.rand(1, 8, 8))


def test_the_lines_of_the_page_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photo().save("photo.jpg")
    page = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    blocks = [block for block in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if "hamburger.huggingface" in block]
    assert blocks
    for block in blocks:
        exec(compile(block, "frameworks.md", "exec"), {"net": network()})


# -- their vision transformers -----------------------------------------------------------------------------------------

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 40, "patch_size": 8}
TRANSFORMERS = {
    "ViT": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**SIZES, intermediate_size=48, num_labels=5)
    ),
    "DINOv2": lambda: transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**SIZES, num_labels=5)),
    "SegFormer": lambda: transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(num_labels=5)),
    "Swin": lambda: transformers.SwinForImageClassification(
        transformers.SwinConfig(image_size=32, patch_size=2, window_size=4, embed_dim=12, depths=[2], num_heads=[1])
    ),
    "BERT": lambda: transformers.BertModel(
        transformers.BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_attention_heads=3)
    ),
}


@pytest.mark.parametrize("name", ["ViT", "DINOv2"])
def test_attention_of_vision_transformers_is_replaced_and_restored(name):
    torch.manual_seed(0)
    net, x = TRANSFORMERS[name]().eval(), torch.rand(2, 3, 40, 40)
    output, keys = net(x).logits, list(net.state_dict())
    hb.replace_attention(net, "nmf", rank=4)
    layers = [module for module in net.modules() if type(module).__name__ == "ReplacedAttention"]
    assert len(layers) == 2 and not any("q_proj" in key or "query" in key for key in net.state_dict())
    assert not torch.allclose(net(x).logits, output)
    net.train()(pixel_values=x, labels=torch.tensor([1, 3])).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layers[0].parameters())
    assert torch.equal(hb.remove_contexts(net.eval())(x).logits, output) and list(net.state_dict()) == keys


def test_attention_that_cannot_be_replaced_says_why():
    with pytest.raises(hb.InputError, match=r"returns \(1, \d+, 32\) for|more than tokens"):  # spatial reduction, sizes
        hb.replace_attention(TRANSFORMERS["SegFormer"](), "nmf")
    with pytest.raises(hb.InputError, match=r"more than tokens"):
        hb.replace_attention(TRANSFORMERS["Swin"](), "nmf")
    with pytest.raises(hb.InputError, match=r"adds its input to what it returns|more than tokens"):
        hb.replace_attention(TRANSFORMERS["BERT"](), "nmf", example={"input_ids": torch.arange(9)[None]})
    with pytest.raises(hb.InputError, match=r"has no block with an attention named .* insert_context"):
        hb.replace_attention(transformers.ResNetModel(transformers.ResNetConfig(depths=[1] * 4)), "nmf")


def test_contexts_are_inserted_behind_blocks_of_transformers():
    net, x = TRANSFORMERS["ViT"]().eval(), torch.rand(2, 3, 40, 40)
    before = net(x).logits
    place = next(name for name, module in net.named_modules() if type(module).__name__ == "ViTLayer")
    assert torch.equal(hb.insert_context(net, {place: "efficient"})(x).logits, before)
