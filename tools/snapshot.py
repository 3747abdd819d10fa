"""Record what the library computes, to the bit, and compare two records: proof that a restructuring changed nothing.

    python tools/snapshot.py write before.json
    python tools/snapshot.py compare before.json after.json      # every difference; exit status 1 where there is one

Only the public surface is used: names of `hamburger` and the commands of `python -m hamburger`. Options whose defaults
may change (rank, version) are always given. Tensors are recorded as type, shape, mean, standard deviation and the
SHA-256 of their bytes. Records can be compared if they were made on the same machine with the same torch.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

# one thread and no GPU, here and in the commands: sums are then always taken in the same order
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
os.environ.pop("HAM_BACKEND", None)

import numpy as np
import timm
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor, nn

import hamburger as hb

HAMS = ("nmf", "vq", "cd")
VERSIONS = ("paper", "v1", "v2", "v2+")
GRADIENTS = ("one-step", "truncated:2", "bptt")
# what two equal runs may differ in
MEASURED = {"images_per_s", "peak_mb", "data_wait", "seconds", "seconds_per_step", "date", "commit", "hardware"}
ENVIRONMENT = {"device", "torch", "threads"}

DECOMPOSITIONS: dict[str, list[dict[str, Any]]] = {
    "nmf": [{}, {"eps": 1e-3}, {"codes_init": "cosine"}, {"codes_init": "uniform"}],
    "vq": [{}, {"temperature": 0.1}, {"temperature": 1.0, "constant_norms": True}],
    "cd": [{}, {"temperature": 0.1}, {"beta": 0.01}, {"temperature": 1.0, "beta": 0.0}],
}
CONTEXT_OPTIONS: dict[str, dict[str, Any]] = {
    **{ham: {"rank": 8, "steps": 6, "version": "v1"} for ham in HAMS},
    "ema": {"rank": 16, "steps": 3},
    "lightham": {"rank": 16, "steps": 6, "eval_steps": 7, "grad": "bptt", "groups": 32},
}
AUX = {"aux_width": 6}
HEAD_OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"width": 16, **AUX} for name in ("apcnet", "danet", "dmnet", "pspnet", "sgr")},
    "cfnet": {"width": 16, "attention_heads": 2, **AUX},
    "dfn": {"width": 16, "border_width": 4},
    "emanet": {"width": 16, "out_width": 6, "rank": 4, **AUX},
    "encnet": {"width": 16, "codewords": 4, **AUX},
    "lightham": {"width": 16, "rank": 4, "groups": 4, "steps": 6, "eval_steps": 7},
    "ocrnet": {"width": 16, "key_width": 4, **AUX},
    "sanet": {"width": 6},
    "spygr": {"width": 16, "embedding": 4, **AUX},
}
# the recipe, its settings, and what is predicted afterwards
INSERTED = "eval_every=6 model.context_options.version=paper"
TRAINED = {
    "train patchwork": (
        "eval_every=6 model.context_options.version=v1 data.options.length=48",
        "left.png other.png",
    ),
    "train figures-classes": (f"{INSERTED} data.options.length=64", "left.png other.png"),
    "train shapes-detect": (f"{INSERTED} model.gate=one data.options.length=24", "left.png other.png --score 0.05"),
    "train planes-tiny": (f"{INSERTED} model.gate=one data.options.length=16", "left.png right.png"),
    "gan train figures": ("sample_every=6 average_from=3", ""),
}
ALL_TRAINED = "steps=12 log_every=3 checkpoint_every=6 model.context_options.rank=8"


class Record:
    """Values by names such as `decompose/nmf/...`. A case that fails is printed, and fails the whole record."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.failed = 0

    def put(self, name: str, value: Any) -> None:
        assert name not in self.values, f"recorded twice: {name}"
        self.values[name] = digest(value) if isinstance(value, (Tensor, np.ndarray)) else value

    def case(self, work: Callable[..., None], name: str, *args: Any, **options: Any) -> None:
        try:
            work(self, name, *args, **options)
        except Exception as error:
            self.failed += 1
            self.put(f"{name}/error", f"{type(error).__name__}: {error}")
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")


def digest(value: Tensor | np.ndarray) -> str:
    """Such as `torch.float32 2x13x37 mean=0.497 std=0.288 sha256=...`, the hash over type, shape and bytes."""
    t = torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
    t = t.detach().cpu().contiguous()
    form = f"{t.dtype} {'x'.join(map(str, t.shape)) or 'scalar'}"
    sha = hashlib.sha256(form.encode() + t.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    wide = t.double()  # mean and deviation are for the reader; the hash decides
    return f"{form} mean={wide.mean():.6g} std={wide.std(correction=0):.6g} sha256={sha}"


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float32, normal: bool = True) -> Tensor:
    draw = torch.randn if normal else torch.rand
    return draw(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def built(build: Callable[[], nn.Module]) -> nn.Module:
    """The module from seed 0, with zero gates opened, so that what lies behind them is seen."""
    torch.manual_seed(0)
    module = build()
    for parameter in module.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, 0.1, 0.2)
    return module


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def spelled(options: dict[str, Any]) -> str:
    return ",".join(f"{key}={sorted(v) if isinstance(v, set) else v}" for key, v in options.items()) or "default"


def record_module(record: Record, name: str, build: Callable[[], nn.Module], *inputs: Tensor) -> None:
    """Training output, gradients, the evaluation that follows, sizes and names. Gradients go by position, not name."""
    module = built(build).train()
    record.put(f"{name}/parameters", count(module))
    record.put(f"{name}/state dict", {key: "x".join(map(str, t.shape)) for key, t in module.state_dict().items()})
    z = inputs[0].clone().requires_grad_()
    torch.manual_seed(1)
    out = module(z, *inputs[1:])
    terms = out if isinstance(out, dict) else {"output": out}
    for key, term in terms.items():
        record.put(f"{name}/train {key}", term)
    total = sum((term * drawn(*term.shape, seed=7, dtype=term.dtype)).sum() for term in terms.values())
    total.backward()
    record.put(f"{name}/gradient of the input", z.grad)
    for i, parameter in enumerate(module.parameters()):
        record.put(f"{name}/gradient of parameter {i}", parameter.grad)
    with torch.no_grad():
        record.put(f"{name}/eval output", module.eval()(inputs[0]))


def record_decomposition(record: Record, name: str, x: Tensor, grads: tuple[Any, ...], **call: Any) -> None:
    """Factors and reconstruction, which no strategy changes, and the gradient of each strategy."""
    weight = drawn(*x.shape, seed=2, dtype=x.dtype)
    for grad in grads:
        z = x.clone().requires_grad_()
        out = hb.decompose(z, grad=grad, generator=torch.Generator().manual_seed(3), **call)
        (out.reconstruction * weight).sum().backward()
        for part, value in out._asdict().items():
            record.put(f"{name}/{grad} {part}", value)
        record.put(f"{name}/{grad} gradient", z.grad)


def record_decompositions(record: Record) -> None:
    sizes = {"odd": (2, 13, 37, 5), "bigger": (2, 64, 500, 8)}
    for ham, dtype, (size, (b, d, n, r)) in product(HAMS, (torch.float32, torch.float64), sizes.items()):
        x = drawn(b, d, n, seed=1, dtype=dtype, normal=False)
        starts = {"drawn": None, "given": drawn(1, d, r, seed=4, dtype=dtype, normal=False)}
        for options, steps, (start, bases) in product(DECOMPOSITIONS[ham], (0, 1, 6), starts.items()):
            name = f"decompose/{ham} {dtype} {size} steps={steps} {spelled(options)} {start}"
            call = {"ham": ham, "rank": r, "steps": steps, "bases": bases, **options}
            record.case(record_decomposition, name, x, GRADIENTS, **call)
    for ham, dtype in product(HAMS, (torch.bfloat16, torch.float16)):
        x = drawn(2, 13, 37, seed=1, dtype=dtype, normal=False)
        record.case(record_decomposition, f"decompose/{ham} {dtype}", x, ("one-step",), ham=ham, rank=5, steps=6)
    # a low rank and a little noise: what converges has an implicit gradient
    left, right, noise = (
        drawn(2, *size, seed=3, dtype=torch.float64, normal=False) for size in ((7, 3), (3, 11), (7, 11))
    )
    bases = drawn(2, 7, 3, seed=6, dtype=torch.float64, normal=False)
    soft = {"rank": 3, "temperature": 0.3}
    for ready, steps in ((hb.NMF(rank=3, eps=1e-12), 4000), (hb.VQ(**soft), 200), (hb.CD(**soft), 200)):
        name, x = f"decompose/{type(ready).__name__} implicit", left @ right + 0.02 + 0.02 * noise
        record.case(record_decomposition, name, x, (hb.Implicit(max_drift=0.1),), ham=ready, steps=steps, bases=bases)


def record_hamburgers(record: Record) -> None:
    flat, line, volume = (2, 24, 6, 5), (2, 24, 19), (2, 24, 3, 4, 5)
    inits, parts = (
        ("random", "fixed", "learned", "online"),
        ("ham", "lower ham", "ham upper", "lower upper", "lower", "upper"),
    )
    cases: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        *(({"ham": h, "version": v}, flat) for h, v in product(HAMS, VERSIONS)),
        *(({"ham": h, "version": v, "init": i}, flat) for h, v, i in product(HAMS, ("v1", "v2"), inits)),
        *(({"ham": h, "version": v, "heads": 2}, flat) for h, v in product(HAMS, VERSIONS)),
        *(({"ham": h, "version": "v2+", "dual": True, "heads": n}, flat) for h, n in product(HAMS, (1, 2))),
        *(({"ham": h, "version": v, "layout": "tokens"}, (2, 19, 24)) for h, v in product(HAMS, ("v1", "v2+"))),
        *(({"ham": h, "version": "v1"}, size) for h, size in product(HAMS, (line, volume))),
        *(({"ham": h, "version": "v1", "grad": g}, flat) for h, g in product(HAMS, GRADIENTS)),
        *(({"ham": "nmf", "version": v, "parts": set(p.split())}, flat) for v, p in product(("paper", "v1"), parts)),
        *(({"ham": h, "version": "v1", "inner": 16, "eval_steps": 7, "seed": 3}, flat) for h in HAMS),
        *(({"ham": "nmf", "version": v, "norm": "none"}, flat) for v in VERSIONS),
        ({"ham": "nmf", "version": "v1", "codes_init": "cosine", "norm_momentum": 0.3}, flat),
        ({"ham": "vq", "version": "v1", "temperature": 0.1, "constant_norms": True}, flat),
        ({"ham": "cd", "version": "v1", "beta": 0.01, "init": "online", "online_momentum": 0.5}, flat),
        ({"ham": "nmf", "version": "v2", "cheese_factor": 2}, flat),
    ]
    for i, (options, size) in enumerate(cases):
        options = {"rank": 4, "steps": 4, **options}
        name = f"hamburger/{i:03} {spelled(options)} {'x'.join(map(str, size))}"
        record.case(record_module, name, partial(hb.Hamburger, 24, **options), drawn(*size, seed=1))


def record_contexts(record: Record) -> None:
    z = drawn(2, 64, 12, 9, seed=1)
    cases = [(name, CONTEXT_OPTIONS.get(name, {})) for name in hb.list_contexts()]
    cases += [(h, {**CONTEXT_OPTIONS[h], "version": v}) for h, v in product(HAMS, VERSIONS) if v != "v1"]
    for context, options in cases:
        build = partial(hb.create_context, context, 64, **options)
        record.case(record_module, f"context/{context} {spelled(options)}", build, z)


def record_insertions(record: Record) -> None:
    image = drawn(2, 3, 32, 32, seed=1)
    sizes = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 3, "num_classes": 5}

    def inserted(ham: str, version: str, gate: str | None) -> nn.Module:
        net = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 5, 1))
        places = {"0": (ham, {"rank": 4, "steps": 4, "version": version}), "2": "efficient"}
        return hb.insert_context(net, places, gate=gate, example=image)

    def replaced(context: str) -> nn.Module:
        options = {"rank": 4, "steps": 4, "version": "paper"} if context in HAMS else {}
        net = timm.create_model("vit_tiny_patch16_224", **sizes)
        return hb.replace_attention(net, context, example=image, **options)

    for case in product(HAMS, ("paper", "v1", "v2"), ("zero", "one", None)):
        record.case(record_module, f"insert/{' '.join(map(str, case))}", partial(inserted, *case), image)
    for context in (*HAMS, "efficient"):
        record.case(record_module, f"replace attention/{context}", partial(replaced, context), image)


def record_models(record: Record, heads: list[str]) -> None:
    image, labels = drawn(2, 3, 37, 29, seed=1), torch.arange(2 * 37 * 29).reshape(2, 37, 29) % 3
    tiny = {"num_classes": 3, "backbone": "tiny", "output_stride": 4, "backbone_options": {"width": 16}}
    ready = [h for h in heads if h != "hamnet"]
    cases: list[tuple[str, dict[str, Any]]] = [(h, {"head_options": HEAD_OPTIONS.get(h, {})}) for h in ready]
    for context in (None, *hb.list_contexts()):
        options = CONTEXT_OPTIONS.get(str(context), {})
        cases.append(("hamnet", {"context": context, "context_options": options, "head_options": {"width": 64}}))
    for head, options in cases:
        build = partial(hb.create_model, head, **tiny, **options)
        record.case(record_module, f"model/{head} {options.get('context', '')}", build, image, labels)
    paper: list[tuple[str, dict[str, Any]]] = [("hamnet", {"context": None}), *((head, {}) for head in ready)]
    paper += [("hamnet", {"context": ham, "context_options": {"rank": 64, "version": "v1"}}) for ham in HAMS]
    with torch.device("meta"):
        for head, options in paper:
            net = hb.create_model(head, backbone="resnet50", num_classes=21, **options)
            record.put(f"paper scale/{head} {options.get('context', '')}/parameters", count(net))


def record_gan(record: Record, name: str, build: Callable[[], Any]) -> None:
    z, y, images = drawn(3, 12, seed=1), torch.tensor([0, 3, 4]), drawn(3, 3, 32, 32, seed=2).tanh()
    networks = built(lambda: nn.ModuleList(build()))
    for player, net, x in zip(("generator", "discriminator"), networks, (z, images), strict=True):
        record.put(f"{name}/{player} parameters", count(net))
        record.put(f"{name}/{player} state dict", sorted(net.state_dict()))
        torch.manual_seed(1)
        with torch.no_grad():
            record.put(f"{name}/{player} train output", net.train()(x, y))
            record.put(f"{name}/{player} eval output", net.eval()(x, y))


def record_gans(record: Record, names: list[str]) -> None:
    multipliers = {"generator_multipliers": [4] * 4, "discriminator_multipliers": [4, 4, 4, 1]}
    small = {"resolution": 32, "num_classes": 5, "latent": 12, "width": 16, **multipliers}
    ham_options = {"context_options": {"rank": 8, "steps": 6}}
    cases: list[tuple[str, dict[str, Any]]] = [(name, ham_options if "ham" in name else {}) for name in names]
    cases += [("sagan", {"context": h, "context_options": CONTEXT_OPTIONS[h]}) for h in HAMS]
    for name, options in cases:
        build = partial(hb.create_gan, name, **small, **options)
        record.case(record_gan, f"gan/{name} {options.get('context', 'own')}", build)


def ham(folder: Path, *words: str) -> str:
    """The output of a command run in the folder, by the same interpreter and the same copy of the library."""
    above = str(Path(hb.__file__).resolve().parents[1])
    path = os.pathsep.join([above, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "200"}
    line = [sys.executable, "-m", "hamburger", *words]
    done = subprocess.run(line, cwd=folder, env=env, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"ham {' '.join(words)} exited with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def write_images(folder: Path) -> None:
    """Coloured blocks with noise; `right.png` is `left.png` seen 5 pixels further."""
    random = np.random.default_rng(0)
    for name in ("left", "other"):
        blocks = np.kron(random.integers(0, 200, (8, 11, 3)), np.ones((8, 8, 1), dtype=int))[:61, :83]
        pixels = (blocks + random.integers(0, 56, blocks.shape)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
        if name == "left":
            Image.fromarray(np.roll(pixels, -5, axis=1)).save(folder / "right.png")


def record_run(record: Record, case: str, folder: Path, command: str) -> None:
    """Train by the command; record the run folder and predictions of the best weights."""
    settings, predicted = TRAINED[command]
    name = command.replace(" ", "-")
    sets = [word for setting in f"{ALL_TRAINED} {settings}".split() for word in ("--set", setting)]
    ham(folder, *command.split(), "--run", name, "--seed", "0", "--accelerator", "cpu", *sets)
    run = folder / name
    record.put(f"{case}/metrics.jsonl", (run / "metrics.jsonl").read_text().splitlines())
    for key, value in json.loads((run / "result.json").read_text()).items():
        if key not in MEASURED | ENVIRONMENT:
            record.put(f"{case}/result.json/{key}", value)
    weights = run / ("generator.safetensors" if command.startswith("gan") else "best.safetensors")
    with safe_open(weights, framework="pt") as file:
        for key in sorted(file.keys()):
            record.put(f"{case}/weights/{key}", file.get_tensor(key))
        for key, text in sorted((file.metadata() or {}).items()):
            record.put(f"{case}/weights metadata/{key}", json.loads(text))
    record_files(record, f"{case}/samples", run / "samples")
    if predicted:
        file, out = str(weights.relative_to(folder)), f"{name}-predicted"
        ham(folder, "predict", file, *predicted.split(), "--out", out, "--device", "cpu")
        record_files(record, f"{case}/predicted", folder / out)


def record_files(record: Record, name: str, folder: Path) -> None:
    """Images by their pixels, JSON by its content (paths in it are relative), others by their bytes."""
    for path in sorted(folder.rglob("*.*")):
        label = f"{name}/{path.relative_to(folder).as_posix()}"
        if path.suffix in (".png", ".jpg"):
            record.put(label, np.array(Image.open(path)))
        elif path.suffix == ".json":
            record.put(label, json.loads(path.read_text()))
        else:
            record.put(label, np.frombuffer(path.read_bytes(), dtype=np.uint8).copy())


def record_kind(record: Record, name: str, folder: Path, kind: str) -> None:
    record.put(name, ham(folder, "list", kind).split())


def record_names(record: Record) -> None:
    record.put("names/__all__", sorted(hb.__all__))
    record.put("names/hams", hb.hams.names())
    record.put("names/contexts", hb.list_contexts())
    for name in sorted(hb.__all__):
        value = getattr(hb, name)
        if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, Exception)):
            record.put(f"names/options of {name}", list(inspect.signature(value).parameters))


def write(target: Path) -> int:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    began, record = time.monotonic(), Record()
    record.put("environment/torch", torch.__version__)
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(1) as executor:
        folder = Path(temporary)
        write_images(folder)
        lines = ham(folder, "list").splitlines()
        kinds = {kind: names.split() for kind, _, names in (line.partition(":") for line in lines)}
        record.put("names/list", kinds)
        # commands on one core, the rest on the other
        jobs = [executor.submit(record.case, record_run, command, folder, command) for command in TRAINED]
        jobs += [executor.submit(record.case, record_kind, f"names/list {kind}", folder, kind) for kind in kinds]
        record_names(record)
        for work in (record_decompositions, record_hamburgers, record_contexts, record_insertions):
            work(record)
        record_models(record, kinds["heads"])
        record_gans(record, kinds["gans"])
        for job in jobs:
            job.result()
    target.write_text(json.dumps(dict(sorted(record.values.items())), indent=1) + "\n")
    seconds = time.monotonic() - began
    sys.stdout.write(f"{len(record.values)} values of {hb.__file__} in {seconds:.0f} s, {record.failed} cases failed\n")
    return 1 if record.failed else 0


def compare(before: Path, after: Path) -> int:
    old, new = (json.loads(path.read_text()) for path in (before, after))
    differences = 0
    for name in sorted(old.keys() | new.keys()):
        if name in old and name in new and old[name] == new[name] and str(old[name]) == str(new[name]):
            continue
        differences += 1
        sys.stdout.write(f"{name}\n")
        gone, come = ([side[name]] if name in side else [] for side in (old, new))
        if gone and come and type(gone[0]) is type(come[0]) and isinstance(gone[0], (list, dict)):
            entries = [(v if isinstance(v, list) else list(v.items())) for v in (gone[0], come[0])]
            gone, come = ([e for e in mine if e not in other] for mine, other in (entries, entries[::-1]))
            if not gone and not come:
                sys.stdout.write("  the same entries in another order or number\n")
        for sign, entries in (("-", gone), ("+", come)):
            for entry in entries:
                sys.stdout.write(f"  {sign} {entry}\n")
    sys.stdout.write(f"{differences} differences in {len(old.keys() | new.keys())} values\n")
    return 1 if differences else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Record what the library computes, and compare two records.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="record into a file").add_argument("file", type=Path)
    comparing = commands.add_parser("compare", help="print every difference; exit status 1 where there is one")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    return write(arguments.file) if arguments.command == "write" else compare(arguments.before, arguments.after)


if __name__ == "__main__":
    sys.exit(main())
