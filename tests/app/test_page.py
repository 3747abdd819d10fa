"""`ham app` in a real browser, on a wide screen and a telephone; screenshots are kept in build/app."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import small_tasks
import torch
from PIL import Image

import hamburger as hb
from hamburger.checkpoints.weights_file import Info
from hamburger.errors import InputError, OptionError
from hamburger.inference.predict_files import read_image
from hamburger.segmentation.model import create_model, save_weights

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "app"
SAMPLES = ROOT / "src/hamburger/app/samples"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (1280, 390)

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(find_spec("gradio") is None, reason="Gradio is not installed; make test-app"),
]
needs_browser = pytest.mark.skipif(
    find_spec("playwright") is None or CHROMIUM is None, reason="Playwright or Chromium is not installed; make test-app"
)


def save(path, context):
    torch.manual_seed(0)
    options = {"rank": 4, "steps": 3} if context else {}
    tiny = {"backbone": "tiny", "output_stride": 4, "head_options": {"width": 32}}
    net = create_model("hamnet", num_classes=4, context=context, context_options=options, **tiny)
    torch.nn.init.normal_(net.head.classifier[-1].weight)
    colours = ((230, 230, 230), (86, 180, 233), (0, 158, 115), (204, 121, 167))
    save_weights(path, net.eval(), Info(classes=("sky", "sea", "land", "<b>bold</b>"), palette=colours))
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return [save(folder / f"{context}.safetensors", context) for context in ("nmf", None)]


def command(*words):
    return [sys.executable, "-m", "hamburger", "app", *map(str, words)]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def served(*words, folder, errors=()):
    """The address of a running server, whose uploads are in `folder`; stops it and checks how it ends."""
    env = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        command(*words, "--port", free_port(), "--device", "cpu"),
        env=env,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        line = server.stdout.readline()
        assert line.startswith("open http://127.0.0.1:"), line + server.stdout.read()
        yield line.split()[1].rstrip("/")
    finally:
        server.send_signal(signal.SIGTERM)
        output = server.communicate(timeout=30)[0]
    assert output.count("Error: ") == len(errors) and all(error in output for error in errors), output
    assert server.returncode == 130
    assert not list(folder.glob("ham-app-*"))  # uploads are gone


@pytest.fixture(scope="module")
def address(weights):
    with (
        tempfile.TemporaryDirectory() as folder,
        served(weights[0], "--compare", weights[1], folder=Path(folder)) as address,
    ):
        yield address


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(chromium, address, width, name):
    """A tab on the page; in the end it has asked no other server, fits the screen, and leaves a screenshot."""
    tab = chromium.new_page(viewport={"width": width, "height": 900}, accept_downloads=True)
    requests = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(address)
    tab.wait_for_selector("input[type=file]", state="attached")
    yield tab
    height = tab.evaluate("document.documentElement.scrollHeight")
    tab.set_viewport_size({"width": width, "height": height})  # images are loaded when they come into view
    tab.wait_for_timeout(500)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path=SCREENSHOTS / f"{name}-{width}.png")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert requests and all(url.startswith((address, "data:", "blob:")) for url in requests), requests
    tab.close()


def upload(tab, path, i=0):
    tab.locator("input[type=file]").nth(i).set_input_files(path)


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_upload_click_and_slide(chromium, address, weights, width, tmp_path):
    photo = SAMPLES / "chelsea.jpg"
    with opened(chromium, address, width, "explorer") as tab:
        began = time.monotonic()
        upload(tab, photo)
        tab.wait_for_selector("text=labels differ from the first model's")
        assert time.monotonic() - began < 5  # about half a second where nothing else runs
        legend = tab.locator(".legend").first.inner_text()
        shares = [float(share) for share in re.findall(r"([\d.]+)%", legend)]
        assert sum(shares) == pytest.approx(100, abs=0.5) and shares == sorted(shares, reverse=True)
        assert tab.locator("b:text('bold')").count() == 0  # names are text, not HTML

        tab.wait_for_selector("text=Atom 1 of 4")
        tab.locator(".thumbnail-item").nth(2).click()
        tab.wait_for_selector("text=Atom 3 of 4")
        tab.locator(".image-frame img").nth(1).click(position={"x": 120, "y": 140})
        tab.wait_for_selector("text=at the clicked pixel")

        before = tab.locator("text=reconstruction error").inner_text()
        for label, value in (("K, steps of the ham", "0"), ("Rank", "1")):
            box = tab.get_by_label(f"number input for {label}")
            box.fill(value)
            box.press("Enter")
        tab.wait_for_selector("text=Atom 1 of 1:")
        after = tab.locator("text=reconstruction error").inner_text()
        assert "labels differ from those of K = 3 and rank 4" in after and "labels" not in before
        errors = [float(re.search(r"= (\d\.\d+)", words)[1]) for words in (before, after)]
        assert errors[0] < errors[1]

        box.fill("4")
        tab.get_by_label("number input for K, steps of the ham").fill("3")
        tab.wait_for_selector(f"text={before}")
        with tab.expect_download() as download:
            tab.locator(".downloads a", has_text="KB").or_(tab.locator(".downloads a")).first.click()
        assert download.value.suggested_filename == "chelsea.png"
        download.value.save_as(tmp_path / "label.png")
        expected = hb.Predictor(weights[0], device="cpu")(read_image(photo))
        assert np.array_equal(np.array(Image.open(tmp_path / "label.png")), expected.numpy())


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_a_corrupt_file_is_reported_and_the_page_goes_on(chromium, address, width, tmp_path):
    broken = tmp_path / "my broken.jpg"
    broken.write_bytes((SAMPLES / "coffee.jpg").read_bytes()[:5000])
    with opened(chromium, address, width, "corrupt") as tab:
        upload(tab, broken)
        alert = tab.wait_for_selector("[role=alert]").inner_text()
        assert alert.startswith("my broken.jpg: damaged or incomplete") and str(tempfile.gettempdir()) not in alert
    with opened(chromium, address, width, "sample") as tab:
        upload(tab, broken)
        tab.wait_for_selector("[role=alert]")
        tab.locator(".gallery-item img, .gallery img").nth(0).click()
        tab.wait_for_selector(".legend")
        assert tab.locator("[role=alert]").count() == 0


@needs_browser
def test_an_upload_above_the_limit_is_refused(chromium, address, tmp_path):
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(65 * 2**20)
    with opened(chromium, address, 1280, "huge") as tab:
        upload(tab, tmp_path / "huge.jpg")
        tab.wait_for_selector("text=/exceeds|too large|maximum/i")
        assert tab.locator(".legend").count() == 0


@needs_browser
def test_stereo_and_detection_have_pages_of_their_own(chromium, tmp_path):
    for task in ("detection", "stereo"):
        small_tasks.train(task, tmp_path / task)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(tmp_path / "left.png")
    with served(tmp_path / "stereo", folder=tmp_path) as address, opened(chromium, address, 1280, "stereo") as tab:
        for i in range(2):
            upload(tab, tmp_path / "left.png", i)
        tab.wait_for_selector("text=/size: 64 x 48, from: .* px/")
        assert "left_disparity.pfm" in tab.locator(".downloads").inner_text().replace("\n", "")
    with served(tmp_path / "detection", folder=tmp_path) as address, opened(chromium, address, 1280, "objects") as tab:
        upload(tab, SAMPLES / "chelsea.jpg")
        tab.wait_for_selector("text=size: 352 x 234")
        tab.get_by_label("number input for Smallest score").fill("0")
        tab.wait_for_selector("text=/found: .* x /")


def test_a_port_out_of_range_is_refused():
    from hamburger.app.page import serve

    with pytest.raises(OptionError, match="app: port must be at most 65535, got 99999999"):
        serve([], host="127.0.0.1", port=99_999_999, ready=print)


def test_files_of_the_machine_are_not_served(address, weights):
    for path in ("/etc/passwd", weights[0], ROOT / "README.md", Path(__file__)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetch(f"{address}/gradio_api/file={path}")
        assert refused.value.code == 403
        refused.value.close()


def fetch(url, body=None, content_type="application/json"):
    request = urllib.request.Request(url, body, {"Content-Type": content_type})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def send(address, path, steps):
    """What the server answers to an event that a script sends: success, and the outputs."""
    session = post(address, path, steps)
    stream = fetch(f"{address}/gradio_api/queue/data?session_hash={session}")
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    done = next(event for event in events if event["msg"] == "process_completed")
    return done["success"], json.dumps(done["output"])


def post(address, path, steps):
    """Send the event that shows a photo; return the name of its session."""
    config = json.loads(fetch(f"{address}/config"))
    show = max(config["dependencies"], key=lambda event: len(event["outputs"]))["id"]
    image = {"path": str(path), "meta": {"_type": "gradio.FileData"}}
    body = {"data": [image, steps, 4], "fn_index": show, "session_hash": str(time.monotonic_ns())}
    fetch(f"{address}/gradio_api/queue/join", json.dumps(body).encode())
    return body["session_hash"]


def upload_by_script(address, path):
    boundary = "boundary"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="{path.name}"\r\n\r\n'
    body = head.encode() + path.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
    return json.loads(fetch(f"{address}/gradio_api/upload", body, f"multipart/form-data; boundary={boundary}"))[0]


def test_forged_events_read_no_other_file_and_solve_within_bounds(weights, tmp_path):
    photo = SAMPLES / "coffee.jpg"
    with served(weights[0], folder=tmp_path, errors=["InvalidPathError: "]) as address:
        uploaded = upload_by_script(address, photo)
        assert send(address, uploaded, 3)[0]
        shutil.copy(photo, tmp_path / "private.jpg")
        success, output = send(address, tmp_path / "private.jpg", 3)
        assert not success and "private_overlay" not in output
        for steps in (10**9, -1, 2.5, "3", None, float("nan")):
            assert "K, steps of the ham must be a whole number from 0 to 20" in send(address, uploaded, steps)[1]


def test_a_photo_is_an_upload_even_where_an_event_does_not_say_it_is_a_file(tmp_path, monkeypatch):
    import gradio

    from hamburger.app.page import check_input

    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    photo, uploaded = tmp_path / "private.jpg", tmp_path / "uploads" / "photo.jpg"
    for path in (photo, uploaded):
        shutil.copy(SAMPLES / "coffee.jpg", path)
    image = gradio.Image()
    assert check_input(image, None) is None and check_input(image, {"path": str(uploaded)}) == str(uploaded)
    for path in (photo, tmp_path / "uploads" / ".." / photo.name, tmp_path / "uploads" / "a\0b"):
        with pytest.raises(InputError, match="must be uploaded"):
            check_input(image, {"path": str(path)})


def test_uploads_are_deleted_though_the_network_computes(weights, tmp_path):
    with served(weights[0], folder=tmp_path) as address:
        photos = [upload_by_script(address, photo) for photo in SAMPLES.glob("*.jpg")]
        for photo in photos * 2:
            post(address, photo, 3)
        time.sleep(0.1)  # the end of `served` checks that nothing is left


@pytest.mark.parametrize("fault", ["task", "port"])
def test_errors_are_one_line(fault, weights, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words, complaint = (weights[0], "--port", taken.getsockname()[1]), "choose another with --port"
        if fault == "task":
            small_tasks.train("classification", tmp_path / "run")
            words, complaint = (weights[0], "--compare", tmp_path / "run"), "both weights must be of one task"
        out = subprocess.run(command(*words), capture_output=True, text=True)
    assert out.returncode == 2 and complaint in out.stderr and out.stderr.count("\n") == 1
