"""Imports point one way; the core needs torch alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import hamburger

SOURCE = Path(hamburger.__file__).parent
LAB = SOURCE.parents[1] / "lab" / "hamburger_lab"
# A package may import from itself and from those before it. Files at the top (errors, tensors, ...) are below all,
# except adapters of frameworks: nothing imports them.
ORDER = (
    *("kernels", "hams", "layers", "contexts", "insertion", "checkpoints", "backbones", "training", "inference"),
    *("segmentation", "classification", "detection", "stereo", "generation", "tasks", "inspect", "report"),
    *("app", "cli"),
)
FRAMEWORKS = {"huggingface", "smp", "mmseg"}
TASKS = {"segmentation", "classification", "detection", "stereo", "generation"}
# generation trains on the image-class data sets of classification
TASK_IMPORTS_ALLOWED = {("generation", "classification")}


def imported(path):
    """The hamburger packages that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level:
            yield "relative"
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            top, *rest = name.split(".")
            if top == "hamburger_lab":
                yield top
            elif top == "hamburger" and rest and (rest[0] in ORDER or rest[0] in FRAMEWORKS):
                yield rest[0]


def violations():
    for path in sorted(SOURCE.rglob("*.py")):
        importer, *rest = path.relative_to(SOURCE).parts
        if importer in ("__init__.py", "__main__.py"):
            continue
        adapter = not rest and importer.removesuffix(".py") in FRAMEWORKS
        height = ORDER.index(importer) if rest else len(ORDER) if adapter else -1
        other_tasks = TASKS - {importer} if importer in TASKS else set()
        for package in sorted(set(imported(path))):
            if package in ("relative", "hamburger_lab"):
                yield f"{path.relative_to(SOURCE)}: {package} import"
            elif package in FRAMEWORKS:
                yield f"{path.relative_to(SOURCE)}: imports {package}, which only users import"
            elif ORDER.index(package) > height:
                yield f"{path.relative_to(SOURCE)}: imports {package}, which is above it"
            elif package in other_tasks and (importer, package) not in TASK_IMPORTS_ALLOWED:
                yield f"{path.relative_to(SOURCE)}: imports {package}, another task"


def test_every_package_is_in_the_import_order():
    assert {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"} == set(ORDER)


def test_imports_point_one_way():
    assert not list(violations()), "\n".join(violations())


# Names of torch that start with an underscore: each exists in torch 2.6 and in the newest torch that we tested.
PRIVATE = {
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch._C._are_functorch_transforms_active",
    "torch._C._cuda_getCurrentRawStream",
    "torch._C._cuda_getDevice",
    "torch._C._len_torch_dispatch_stack",
    "torch._dynamo",
    "torch._dynamo.reset_code_caches",
    "torch.autograd.forward_ad._current_level",
    "torch.ops.mkldnn._linear_pointwise",
    "torch.utils._python_dispatch.TorchDispatchMode",
    *(f"torch._foreach_{name}" for name in ("add_", "clamp_min_", "copy_", "div", "div_", "lerp_", "norm")),
}


def private_torch_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)] if ast.unparse(node).startswith("torch.") else []
        else:
            continue
        yield from (name for name in names if re.search(r"\._(?!_|C$)", name))


def test_private_names_of_torch_are_the_known_ones():
    files = [*SOURCE.rglob("*.py"), *LAB.rglob("*.py")]
    assert {name for path in files for name in private_torch_names(path)} == PRIVATE


# torch itself loads numpy where it is installed
CORE = """
import sys
import torch
before = set(sys.modules)
import hamburger as hb
hb.Hamburger(8, rank=2)(torch.rand(1, 8, 4, 4))
import hamburger.checkpoints
extras = {"numpy", "torchvision", "timm", "matplotlib", "typer", "rich", "sklearn", "onnx", "safetensors"}
extras |= {"transformers", "segmentation_models_pytorch"}
print(*sorted(m for m in extras if m in sys.modules and m not in before))
"""


def test_importing_the_core_loads_no_extra():
    out = subprocess.run([sys.executable, "-c", CORE], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


def test_a_forward_pass_enters_at_most_eight_files():
    script = SOURCE.parents[1] / "tools" / "call_path.py"
    out = subprocess.run([sys.executable, script, "forward"], capture_output=True, text=True, check=True)
    files = out.stdout.splitlines()[1].partition(": ")[2].split()
    assert "hams/nmf.py" in files and len(files) <= 8, files
