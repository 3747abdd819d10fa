"""The page of `ham app`, made with Gradio: its parts, what they call, and the server."""

from __future__ import annotations

import logging
import os
import re
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
from hamburger.errors import HamburgerError, InputError, OptionError, check_count, printable, shorten
from hamburger.files import is_number
from hamburger.inference.predict_files import read_image
from hamburger.inspect.plots import plot_spectrum
from hamburger.segmentation.predict import TRANSPARENT, blend_labels, draw_overlay_jpeg
from hamburger.training.image_files import encode_image, encode_label_png
from hamburger.training.safe_files import MAX_FILE_BYTES

HERE = Path(__file__).parent
ATOMS = 12  # heat maps in the gallery
HEIGHT = 320  # pixels of an image on the page
FLAGS = ("ANALYTICS_ENABLED", "SHARE", "SSR_MODE", "MCP_SERVER", "RUN_HISTORY")  # of Gradio, all off
COMPUTING = threading.Lock()  # held while a network runs and writes files
NARROW: dict[str, Any] = {"min_width": 280}  # columns that fit a telephone


def serve(models: Sequence[Model], *, host: str, port: int, ready: Callable[[str], object]) -> None:
    """Serve the page until Ctrl-C; `ready` is called with its address. Uploads are deleted at the end."""
    check_count("app", "port", port, least=1, most=65535)
    fonts = ["system-ui", "sans-serif"]
    theme = gr.themes.Default(primary_hue="orange", neutral_hue="stone", font=fonts, font_mono=["monospace"])
    with tempfile.TemporaryDirectory(prefix="ham-app-", ignore_cleanup_errors=True) as folder:
        os.environ |= {"GRADIO_TEMP_DIR": str(Path(folder).resolve()), **{f"GRADIO_{flag}": "False" for flag in FLAGS}}
        options: dict[str, Any] = {"server_name": host, "server_port": port, "max_file_size": MAX_FILE_BYTES}
        options |= {"theme": theme, "css_paths": HERE / "style.css", "footer_links": [], "enable_monitoring": False}
        page = build_page(models)
        try:
            address = page.launch(prevent_thread_lock=True, quiet=True, share=False, **options)[1]
        except OSError:
            raise OptionError(f"app: cannot listen on port {port} of {host}; choose another with --port") from None
        try:
            ready(address)
            threading.Event().wait()
        finally:
            logging.getLogger("uvicorn.error").disabled = True  # it would log every page that is open
            page.server.force_exit = True  # and wait for them
            page.close(verbose=False)
            with COMPUTING:  # no file is written while the folder is deleted
                pass


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
    return f'<p class="note">{escape(words)}</p>'


class View:
    """What the pages of all tasks share: photos, the prediction of each model, and events that show errors."""

    def __init__(self, models: Sequence[Model], names: Sequence[str] = ("Photo",)) -> None:
        with gr.Row():
            with gr.Column(**NARROW):
                options = {"sources": ["upload", "webcam", "clipboard"], "height": HEIGHT, "buttons": []}
                self.inputs = [gr.Image(label=name, **options) for name in names]
                if len(names) == 1:
                    samples = [[str(path)] for path in sorted(HERE.glob("samples/*.jpg"))]
                    gr.Examples(samples, self.inputs, label="Samples")
                self.alert = gr.HTML()
            self.predictions = [self._add_prediction(i) for i in range(len(models))]

    def _add_prediction(self, i: int) -> tuple[gr.Image, gr.HTML]:
        with gr.Column(**NARROW):
            return self.add_image("Prediction of the second model" if i else "Prediction"), gr.HTML()

    def add_image(self, label: str) -> gr.Image:
        return gr.Image(label=label, interactive=False, format="jpeg", height=HEIGHT, buttons=["fullscreen"], **NARROW)

    def add_downloads(self, show: Callable[..., dict[Any, Any]], views: Sequence[Any] = ()) -> None:
        """Add the list of files; from now on, `show` fills it, the predictions and `views` when an input changes."""
        self.files = gr.File(label="Downloads", file_count="multiple", interactive=False, elem_classes="downloads")
        outputs = [*chain(*self.predictions), *views, self.files]
        self.on([each.change for each in self.inputs], show, outputs)

    def on(self, triggers: Sequence[Any], call: Callable[..., dict[Any, Any]], outputs: Sequence[Any]) -> None:
        """Run `call` on the inputs at these events. Where it raises, show the error and clear the outputs."""

        @wraps(call)
        def report(*values: Any) -> dict[Any, Any]:
            try:
                inputs = map(check_input, self.inputs, values)
                with COMPUTING:
                    return {self.alert: "", **call(*inputs, *values[len(self.inputs) :])}
            except HamburgerError as error:
                # the user knows the names of uploads, not where they are stored
                words = re.sub(rf"{re.escape(os.environ['GRADIO_TEMP_DIR'])}/[^/]+/", "", str(error))
                alert = f'<p class="alert" role="alert">{escape(printable(words))}</p>'
                return {self.alert: alert, **dict.fromkeys(outputs)}

        # preprocessing would decode uploads with Gradio's own reader
        options = {"preprocess": False, "concurrency_id": "network", "show_progress": "minimal"}
        gr.on(triggers, report, self.inputs, [self.alert, *outputs], api_visibility="private", **options)


def check_input(component: gr.Image | gr.Slider, value: Any) -> Any:
    """The value of a slider within its bounds, or the path of an upload; raise on any other value."""
    if isinstance(component, gr.Slider):
        low, high, whole = component.minimum, component.maximum, component.step == 1
        if not (is_number(value) and low <= value <= high and (not whole or value == int(value))):
            kind = "a whole number" if whole else "a number"
            raise InputError(f"app: {component.label} must be {kind} from {low} to {high}, got {shorten(value)}")
        return int(value) if whole else value
    path = value and value["path"]
    # Gradio checks only values that a forged event marks as files
    if path and ("\0" in path or not Path(path).resolve().is_relative_to(os.environ["GRADIO_TEMP_DIR"])):
        raise InputError("app: a photo must be uploaded")
    return path or None


class Explorer(View):
    """Labels by each model; atoms, features and spectra of the first one's ham, and sliders for its solve."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__(models)
        self.models, self.views, ham = models, [], models[0].ham
        self.explain = lru_cache(maxsize=8)(self._explain)
        if ham is not None:
            with gr.Row():
                most = max(20, 2 * ham.eval_steps)
                self.inputs.append(gr.Slider(0, most, ham.eval_steps, step=1, label="K, steps of the ham", **NARROW))
                # a trained dictionary cannot grow; of a random one, further bases are drawn
                most = ham.ham.rank * (1 if ham.dictionary.init in ("learned", "online") else 2)
                self.inputs.append(gr.Slider(1, most, ham.ham.rank, step=1, label="Rank", **NARROW))
            note = gr.HTML()
            with gr.Row():
                self.atom = self.add_image("Atom")
                options = {"height": HEIGHT, "object_fit": "contain", "allow_preview": False, "interactive": False}
                options |= {"format": "jpeg", "buttons": [], "label": "Atoms, the strongest first"}
                gallery = gr.Gallery(**options, **NARROW)
            with gr.Row():
                names = ("Features X before the ham", "Reconstruction D C", "Spectra")
                self.views = [note, self.atom, gallery, *map(self.add_image, names)]
            self.on([self.predictions[0][0].select, self.atom.select, gallery.select], self.show_atom, [self.atom])
        self.add_downloads(self.show, self.views)

    def _explain(self, i: int, path: str, steps: int | None = None, rank: int | None = None) -> Explanation:
        return explain.explain(self.models[i], shrink(read_image(Path(path))), steps=steps, rank=rank)

    def show(self, path: str | None, steps: int | None = None, rank: int | None = None) -> dict[Any, Any]:
        """Every view of one photo."""
        if path is None:
            return {}
        every = [self.explain(0, path, steps, rank), *(self.explain(i, path) for i in range(1, len(self.models)))]
        values: dict[Any, Any] = {self.files: write_files(Path(path).stem, self.models[0], every[0])}
        for (image, legend), model, shown in zip(self.predictions, self.models, every, strict=True):
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
        small, strongest = shrink(shown.image, side=256), zip(solve.maps[:ATOMS], solve.shares[:ATOMS], strict=True)
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
    return f"{(one.label != other.label).float().mean():.1%}"


def draw_legend(model: Model, shares: dict[str, float]) -> str:
    """HTML with the classes, the largest first, their colours over the photo and their shares."""
    colours = dict(zip(model.info.classes, [TRANSPARENT, *model.palette[1:]], strict=False))
    items = [
        f'<li><i style="background: rgb{colours[name]}"></i>{escape(name)} <span>{share:.1%}</span></li>'
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
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
    return Path(tempfile.mkdtemp(dir=os.environ["GRADIO_TEMP_DIR"]))


class FileView(View):
    """What `ham predict` writes for a photo, or a pair of photos, with each model."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.predictors = [model.task.predictor(model.net, model.info, model.device) for model in models]
        super().__init__(models, ("Left", "Right") if self.predictors[0].pairs else ("Photo",))
        self.scored = hasattr(self.predictors[0], "score")
        if self.scored:
            self.inputs.append(gr.Slider(0, 1, self.predictors[0].score, step=0.05, label="Smallest score"))
        self.add_downloads(self.show)

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
            prediction, out = predictor(*paths), new_folder()
            written = {kind: out / predictor.files[kind](paths[0].stem) for kind in prediction.files}
            for kind, path in written.items():
                path.write_bytes(prediction.files[kind])
            words = [f"{name}: {cell}" for name, cell in zip(predictor.columns[1:], prediction.cells, strict=True)]
            image = written.get("overlay") or written.get("colours") or paths[0]
            shown |= dict(zip(self.predictions[i], (image, write_note(", ".join(words))), strict=True))
            files += map(str, written.values())
        return shown | {self.files: files}
