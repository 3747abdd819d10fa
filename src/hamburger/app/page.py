"""The page of `ham app`, made with Gradio: its parts, what they call, and the server."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw
from torch import Tensor

from hamburger.app import explain
from hamburger.app.explain import Explanation, Model, Solve, shrink
from hamburger.errors import HamburgerError, OptionError, printable
from hamburger.inference.predict_files import read_image
from hamburger.inspect.plots import plot_spectrum
from hamburger.segmentation.predict import TRANSPARENT, blend_labels, draw_overlay_jpeg
from hamburger.training.image_files import encode_image, encode_label_png
from hamburger.training.safe_files import MAX_FILE_BYTES

SAMPLES = Path(__file__).parent / "samples"
STYLE = Path(__file__).parent / "style.css"
ATOMS = 12  # heat maps in the gallery
THUMBNAIL = 256  # pixels of their longer side
CLASSES = 8  # entries of a legend
HEIGHT = 320  # pixels of an image on the page
FLAGS = ("ANALYTICS_ENABLED", "SHARE", "SSR_MODE", "MCP_SERVER", "RUN_HISTORY")  # of Gradio, all off
NARROW: dict[str, Any] = {"min_width": 280}  # columns that fit a telephone


def serve(models: Sequence[Model], *, host: str, port: int, ready: Callable[[str], object]) -> None:
    """Serve the page until Ctrl-C; `ready` is called with its address. Uploads are deleted at the end."""
    fonts = ["system-ui", "sans-serif"]
    theme = gr.themes.Default(primary_hue="orange", neutral_hue="stone", font=fonts, font_mono=["monospace"])
    with tempfile.TemporaryDirectory(prefix="ham-app-") as folder:
        os.environ |= {"GRADIO_TEMP_DIR": folder, **{f"GRADIO_{flag}": "False" for flag in FLAGS}}
        options: dict[str, Any] = {"server_name": host, "server_port": port, "max_file_size": MAX_FILE_BYTES}
        options |= {"theme": theme, "css_paths": STYLE, "footer_links": [], "enable_monitoring": False}
        page = build_page(models)
        try:
            address = page.launch(prevent_thread_lock=True, quiet=True, share=False, **options)[1]
        except OSError:
            raise OptionError(f"app: cannot listen on port {port} of {host}; choose another with --port") from None
        ready(address)
        threading.Event().wait()


def build_page(models: Sequence[Model]) -> gr.Blocks:
    """The page of one model, or of two of the same task side by side."""
    if len({model.task.name for model in models}) > 1:
        names = " and ".join(f"{model.path} ({model.task.name})" for model in models)
        raise OptionError(f"app: both weights must be of one task (got {names})")
    with gr.Blocks(title="hamburger explorer", analytics_enabled=False, delete_cache=(60, 3600)) as page:
        gr.HTML("<h1>hamburger explorer</h1>")
        for model in models:
            ham, words = model.ham, f"{model.path}: {model.task.name}, {len(model.info.classes)} classes"
            gr.HTML(write_note(f"{words}, {type(ham.ham).__name__} of rank {ham.ham.rank}" if ham else words))
        (Explorer if models[0].task.name == "segmentation" else FileView)(models)
    return page


def write_note(words: str) -> str:
    """A line of HTML."""
    return f'<p class="note">{escape(words)}</p>'


class View:
    """What the pages of all tasks share: photos, images, and events that show errors on the page."""

    alert: Any

    def photo(self, label: str, *, samples: bool = True) -> gr.Image:
        """An input for a photo; its value is the path of the uploaded file, which Gradio does not decode."""
        photo = gr.Image(label=label, sources=["upload", "webcam", "clipboard"], height=HEIGHT, buttons=[])
        photo.preprocess = lambda payload: payload and payload.path
        if samples:
            gr.Examples([[str(path)] for path in sorted(SAMPLES.glob("*.jpg"))], photo, label="Samples")
        return photo

    def image(self, label: str) -> gr.Image:
        return gr.Image(label=label, interactive=False, format="jpeg", height=HEIGHT, buttons=["fullscreen"], **NARROW)

    def prediction(self, label: str, i: int) -> tuple[gr.Image, gr.HTML]:
        """A column with the prediction of model i: an image, and words below it."""
        with gr.Column(**NARROW):
            return self.image(f"{label}, second model" if i else label), gr.HTML()

    def on(self, triggers: Sequence[Any], call: Callable[..., dict[Any, Any]], inputs: Any, outputs: list[Any]) -> None:
        """Run `call` at these events, one at a time. Where it raises, show the error and clear the outputs."""

        @wraps(call)
        def report(*values: Any) -> dict[Any, Any]:
            try:
                return {self.alert: "", **call(*values)}
            except HamburgerError as error:
                words = str(error)
                for path in values:  # the user knows the names of uploads, not where they are stored
                    words = words.replace(path, Path(path).name) if isinstance(path, str) else words
                alert = f'<p class="alert" role="alert">{escape(printable(words))}</p>'
                return {self.alert: alert, **dict.fromkeys(outputs)}

        options = {"concurrency_id": "network", "show_progress": "minimal", "api_visibility": "private"}
        gr.on(triggers, report, inputs, [self.alert, *outputs], **options)


# -- segmentation ------------------------------------------------------------------------------------------------------


class Explorer(View):
    """Labels by each model; atoms, features and spectra of the first one's ham, and sliders for its solve."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models, ham, views = models, models[0].ham, []
        self.explain = lru_cache(maxsize=8)(self._explain)
        with gr.Row():
            with gr.Column(**NARROW):
                inputs = [self.photo("Photo")]
                self.alert = gr.HTML()
            self.labels = [self.prediction("Labels", i) for i in range(len(models))]
        if ham is not None:
            with gr.Row():
                most = max(20, 2 * ham.eval_steps)
                inputs.append(gr.Slider(0, most, ham.eval_steps, step=1, label="K, steps of the ham", **NARROW))
                # a trained dictionary cannot grow; of a random one, further bases are drawn
                most = ham.ham.rank * (1 if ham.dictionary.init in ("learned", "online") else 2)
                inputs.append(gr.Slider(1, most, ham.ham.rank, step=1, label="Rank", **NARROW))
            self.note = gr.HTML()
            with gr.Row():
                self.atom = self.image("Atom")
                options = {"columns": 4, "height": HEIGHT, "allow_preview": False, "interactive": False, "buttons": []}
                options |= {"object_fit": "contain"}
                self.gallery = gr.Gallery(label="Atoms, the strongest first", format="jpeg", **options, **NARROW)
            with gr.Row():
                views = [self.image(words) for words in ("Features X before the ham", "Reconstruction D C", "Spectra")]
            self.views = [self.note, self.atom, self.gallery, *views]
            clicks = [self.labels[0][0].select, self.atom.select, self.gallery.select]
            self.on(clicks, self.show_atom, inputs, [self.atom])
        self.files = gr.File(label="Downloads", file_count="multiple", interactive=False)
        outputs = [*chain(*self.labels), *(self.views if ham else []), self.files]
        self.on([each.change for each in inputs], self.show, inputs, outputs)

    def _explain(self, i: int, path: str, steps: int | None = None, rank: int | None = None) -> Explanation:
        return explain.explain(self.models[i], shrink(read_image(Path(path))), steps=steps, rank=rank)

    def show(self, path: str | None, steps: int | None = None, rank: int | None = None) -> dict[Any, Any]:
        """Every view of one photo."""
        if path is None:
            return {}
        every = [self.explain(0, path, steps, rank), *(self.explain(i, path) for i in range(1, len(self.models)))]
        values: dict[Any, Any] = {self.files: write_files(Path(path).stem, self.models[0], every[0])}
        for (image, legend), model, shown in zip(self.labels, self.models, every, strict=True):
            values[image] = blend_labels(shown.image, shown.label, model.palette).numpy()
            values[legend] = draw_legend(model, shown.shares)
            if shown is not every[0] and model.info.classes == self.models[0].info.classes:
                values[legend] += write_note(
                    f"labels differ from the first model's at {differ(shown, every[0])} of pixels"
                )
        return values | (self._show_solve(path, every[0], every[0].solve) if every[0].solve else {})

    def _show_solve(self, path: str, shown: Explanation, solve: Solve) -> dict[Any, Any]:
        note, ham = f"reconstruction error |X - D C| / |X| = {solve.error:.3f}", self.models[0].ham
        assert ham is not None
        steps, rank = ham.eval_steps, ham.ham.rank
        if (trained := self.explain(0, path, steps, rank)) is not shown:
            note += f"; labels differ from those of K = {steps} and rank {rank} at {differ(shown, trained)} of pixels"
        figure, plot = Figure(figsize=(4.5, 3.2), layout="constrained"), new_folder() / "spectra.png"
        plot_spectrum(figure.subplots(), solve.spectrum)
        figure.savefig(plot, dpi=200)
        small, strongest = shrink(shown.image, THUMBNAIL), zip(solve.maps[:ATOMS], solve.shares[:ATOMS], strict=True)
        atoms = [(to_pixels(explain.draw_heat(small, each)), f"{share:.0%}") for each, share in strongest]
        images = (to_pixels(solve.before), to_pixels(solve.after), str(plot))
        return dict(zip(self.views, (write_note(note), self._draw_atom(shown, 0), atoms, *images), strict=True))

    def show_atom(self, path: str, steps: int, rank: int, event: gr.SelectData) -> dict[Any, Any]:
        """One heat map, large: the clicked one, or that of the atom with the largest part at the clicked pixel."""
        shown = self.explain(0, path, steps, rank)
        if isinstance(event.index, int):
            return {self.atom: self._draw_atom(shown, event.index)}
        assert shown.solve is not None
        x, y = event.index
        atom, share = explain.find_atom(shown.solve, x / shown.image.shape[2], y / shown.image.shape[1])
        return {self.atom: self._draw_atom(shown, atom, (x, y), f", {share:.0%} at the clicked pixel")}

    def _draw_atom(self, shown: Explanation, atom: int, pixel: tuple[int, int] | None = None, words: str = "") -> Any:
        assert shown.solve is not None
        image = Image.fromarray(to_pixels(explain.draw_heat(shown.image, shown.solve.maps[atom])))
        if pixel is not None:
            radius = max(3, max(image.size) // 60)
            box = [each + sign * radius for sign in (-1, 1) for each in pixel]
            ImageDraw.Draw(image).ellipse(box, outline="white", width=max(1, radius // 3))
        share = float(shown.solve.shares[atom])
        return gr.update(value=image, label=f"Atom {atom + 1} of {len(shown.solve.maps)}: {share:.0%} of energy{words}")


def to_pixels(image: Tensor) -> np.ndarray:
    """3 h w   ->   h w 3"""
    return image.movedim(0, 2).numpy()


def differ(one: Explanation, other: Explanation) -> str:
    """The share of pixels whose labels differ."""
    return f"{(one.label != other.label).float().mean():.1%}"


def draw_legend(model: Model, shares: dict[str, float]) -> str:
    """HTML with the largest classes, their colours over the photo and their shares."""
    colours = dict(zip(model.info.classes, [TRANSPARENT, *model.palette[1:]], strict=False))
    items = [
        f'<li><i style="background: rgb{colours[name]}"></i>{escape(name)} <span>{share:.1%}</span></li>'
        for name, share in sorted(shares.items(), key=lambda item: -item[1])[:CLASSES]
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def write_files(name: str, model: Model, shown: Explanation) -> list[str]:
    """Write what can be downloaded: label PNG, overlay JPEG, and the ham's bases and codes as .npz."""
    folder = new_folder()
    (folder / f"{name}.png").write_bytes(encode_label_png(shown.label, model.palette))
    overlay = draw_overlay_jpeg(shown.image, shown.label, model.info.classes, model.palette)
    (folder / f"{name}_overlay.jpg").write_bytes(overlay)
    if shown.solve is not None:
        codes, bases, energies = (each[0].cpu().numpy() for each in shown.solve.codes)
        np.savez(folder / f"{name}_codes.npz", codes=codes, bases=bases, energies=energies)
    return sorted(map(str, folder.iterdir()))


def new_folder() -> Path:
    """A folder among the uploads, which the server deletes."""
    return Path(tempfile.mkdtemp(dir=os.environ.get("GRADIO_TEMP_DIR")))


# -- other tasks -------------------------------------------------------------------------------------------------------


class FileView(View):
    """What `ham predict` writes for a photo, or a pair of photos, with each model."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.predictors = [model.task.predictor(model.net, model.info, model.device) for model in models]
        names = ("Left", "Right") if self.predictors[0].pairs else ("Photo",)
        with gr.Row():
            inputs = [self.photo(name, samples=len(names) == 1) for name in names]
        self.scored = hasattr(self.predictors[0], "score")
        if self.scored:
            inputs.append(gr.Slider(0, 1, self.predictors[0].score, step=0.05, label="Smallest score"))
        self.alert = gr.HTML()
        with gr.Row():
            self.predictions = [self.prediction("Prediction", i) for i in range(len(models))]
        self.files = gr.File(label="Downloads", file_count="multiple", interactive=False)
        self.on([each.change for each in inputs], self.show, inputs, [*chain(*self.predictions), self.files])

    def show(self, *values: Any) -> dict[Any, Any]:
        """The prediction of each model for these paths, with objects of that score or more."""
        paths = [Path(value) for value in values if isinstance(value, str)]
        if len(paths) < len(values) - self.scored:
            return {}
        folder, shown, files = new_folder(), dict[Any, Any](), list[str]()
        for i, path in enumerate(paths):
            paths[i] = folder / f"{path.stem}.png"
            paths[i].write_bytes(encode_image(to_pixels(shrink(read_image(path))), "PNG"))
        for i, predictor in enumerate(self.predictors):
            if self.scored:
                predictor.score = values[-1]
            prediction, out = predictor(*paths), folder / f"model-{i + 1}"
            out.mkdir()
            written = {kind: out / predictor.files[kind](paths[0].stem) for kind in prediction.files}
            for kind, path in written.items():
                path.write_bytes(prediction.files[kind])
            words = [f"{name}: {cell}" for name, cell in zip(predictor.columns[1:], prediction.cells, strict=True)]
            image = written.get("overlay") or written.get("colours") or paths[0]
            shown |= dict(zip(self.predictions[i], (image, write_note(", ".join(words))), strict=True))
            files += map(str, written.values())
        return shown | {self.files: files}
