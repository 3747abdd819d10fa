"""Limits of data files: small files that demand much memory, names that leave the folder, text that is none."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib

import fake_coco
import fake_datasets
import numpy as np
import pytest
from fuzz_data import encode, pack_png
from paths import ROOT
from PIL import Image

from hamburger.detection.data import create_detection_set
from hamburger.errors import DataError, shorten
from hamburger.files import read_bytes
from hamburger.segmentation.data import create_dataset
from hamburger.segmentation.data.folder import index_colours
from hamburger.stereo.data.files import read_disparity
from hamburger.training.image_files import check_tags, read_image, read_indices
from hamburger.training.safe_files import MAX_PIXELS, check_relative, describe, read_lines, read_npy
from hamburger_lab.prepare_voc import read_sbd_label

# -- memory ------------------------------------------------------------------------------------------------------------

MOST_MB = 200  # by which reading one hostile file may raise the peak of a process
READ = """
import os, resource, sys
from pathlib import Path
from hamburger.errors import DataError
from hamburger.classification.data.cifar10 import read_batch
from hamburger.detection.data import coco
from hamburger.stereo.data.files import read_disparity
from hamburger.training.image_files import read_image
from hamburger_lab.prepare_voc import read_sbd_label
READERS = {".png": read_image, ".webp": read_image, ".tif": read_image, ".npz": read_disparity, ".pfm": read_disparity,
           ".mat": read_sbd_label, "": read_batch}
def peak():  # in KiB; getrusage would give that of the process that started this one
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (size + 3 * 2**30,) * 2)  # protects the machine that runs the test
for name in sys.argv[1:]:
    path = Path(name)
    before = peak()
    try:
        READERS[path.suffix](path)
        outcome = "read"
    except DataError as error:
        outcome = str(error)
    grown = (peak() - before) // 1024
    print(f"{path.name}|{grown}|{outcome}", flush=True)
"""


def hostile_files(folder):
    """Small files that other readers expand to gigabytes."""

    def zipped(content, kind=zipfile.ZIP_DEFLATED, level=1):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", kind, compresslevel=level) as archive:
            archive.writestr("disparity.npy", content)
        return buffer.getvalue()

    def npy(shape):
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
        return buffer.getvalue()

    def mat(body):
        content = zlib.compress(body, 1)
        return b"MATLAB 5.0".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(content)) + content

    def element(kind, *parts):
        content = b"".join(parts)
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    zeros = bytes(2**27)
    start = element(6, struct.pack("<II", 2, 0)), element(5, struct.pack("<ii", 1, 1)), element(1, b"GTcls")
    width, names = element(5, struct.pack("<i", 1)), element(1, zeros[: 60 * 2**20])
    header = struct.pack(">IIBBBBB", 8192, 8193, 1, 0, 0, 0, 0)  # one bit for each pixel
    pixels = zeros[: 8193 * 1025]  # each row begins with the number of its filter
    png = b"IHDR" + struct.pack(">I", 13) + header + b"IDAT" + struct.pack(">I", len(pixels)) + pixels
    return {
        "pixels.png": pack_png(png + b"IEND" + bytes(4)),
        "canvas.webp": _webp(16_383, 16_383),
        "tags.tif": _overlapping_tags(2**19),
        "tile.tif": _tiff_tile(2**16, 2**15),
        "zeros.npz": zipped(npy((2**14, 2**13)) + zeros),
        "header.npz": zipped(npy((2**20, 2**20))),
        "long_header.npz": zipped(b"\x93NUMPY\2\0" + struct.pack("<I", 2**28) + zeros + zeros, level=9),
        "bzip2.npz": zipped(npy((8, 8)) + zeros[: 2**24], zipfile.ZIP_BZIP2),
        "large.pfm": b"Pf\n65000 1000\n-1\n" + bytes(400),
        "inflated.mat": mat(zeros),
        "nested.mat": mat(struct.pack("<II", 15, 2**31) + zlib.compress(zeros, 1)),
        "names.mat": mat(element(14, *start, width, names)),
        "dimensions.mat": mat(element(14, start[0], element(5, names), start[2])),
        "memo": b"\x80\x02Nr\xff\xff\xff\x00.",
        "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**34) + b".",
        "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**34) + b".",
    }


def _overlapping_tags(length):
    """A TIFF, or EXIF data, of which each of ten thousand tags has the whole file as its value."""
    tags = b"".join(struct.pack("<HHII", tag, 7, length - 8, 0) for tag in range(1000, 11_000))
    return (b"II*\0" + struct.pack("<IH", 8, 10_000) + tags).ljust(length, b"\0")


def _tiff_tile(width, height):
    """A TIFF of 16 x 16 pixels in one tile of another size."""
    values = {256: 16, 257: 16, 258: 8, 259: 5, 262: 1, 277: 1, 322: width, 323: height, 324: 200, 325: 400}
    tags = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in values.items())
    return (b"II*\0" + struct.pack("<IH", 8, len(values)) + tags).ljust(600, b"\0")


def test_tags_of_exif_data_cannot_demand_much_memory(tmp_path):
    """Pillow before 13 copies the value of every tag, wherever it is."""
    Image.new("RGB", (16, 8)).save(tmp_path / "a.png", exif=_overlapping_tags(2**19))
    tracemalloc.start()
    assert read_image(tmp_path / "a.png").shape == (3, 8, 16)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


def test_a_tiff_of_too_many_tiles_is_refused(tmp_path):
    path, tile_offsets = tmp_path / "a.tif", (324, 4, 2**20 + 1, 8)
    path.write_bytes(struct.pack("<2sHIHHHII", b"II", 42, 8, 1, *tile_offsets) + bytes(4))
    with path.open("rb") as file, pytest.raises(DataError, match="has 1,048,577 numbers in a tag; at most 1,048,576"):
        check_tags(path, file)


def test_a_label_in_colours_takes_little_more_memory_than_its_pixels(tmp_path):
    Image.new("RGB", (4096, 4096), (1, 2, 3)).save(tmp_path / "a.png")
    tracemalloc.start()
    path = tmp_path / "a.png"
    label = index_colours(path, read_indices(path, colours=True), {0x010203: 7})
    assert tracemalloc.get_traced_memory()[1] < 16 * label.size
    tracemalloc.stop()
    assert label.shape == (4096, 4096) and (label == 7).all()


def _webp(width, height):
    """A valid WebP file whose header says another size."""
    content = bytearray(encode("WEBP", np.zeros((8, 8, 4), np.uint8), lossless=True))
    extended = b"VP8X" + struct.pack("<I", 10) + bytes([16, 0, 0, 0])
    extended += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + extended + bytes(content[12:])
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_small_files_cannot_demand_much_memory(tmp_path):
    files = hostile_files(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert len(content) < 2**20, name
    paths = [str(tmp_path / name) for name in files]
    sources = os.pathsep.join(map(str, (ROOT / "src", ROOT / "lab")))
    environment = {**os.environ, "PYTHONPATH": sources, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", READ, *paths], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split("|", 2) for line in done.stdout.splitlines()]
    assert [name for name, _, _ in lines] == list(files)
    for name, grown, outcome in lines:
        assert int(grown) < MOST_MB, (name, grown, outcome)
        assert outcome.startswith(str(tmp_path / name)), (name, outcome)


def test_an_image_of_too_many_pixels_is_refused_by_its_header(tmp_path):
    side = int(MAX_PIXELS**0.5)
    Image.new("1", (side, side + 1)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=rf"a\.png: {side} x {side + 1} pixels are more than the {MAX_PIXELS:,}"):
        read_image(tmp_path / "a.png")


def test_elements_of_a_mat_file_share_one_limit(tmp_path):
    header = struct.pack("<8I", 6, 8, 6, 0, 5, 8, 1, 1) + struct.pack("<HH4s", 1, 1, b"x")
    element = zlib.compress(
        struct.pack("<II", 14, 2**25) + header + struct.pack("<II", 9, 2**25 - 48).ljust(2**25 - 40, b"\0"), 1
    )
    content = b"MATLAB 5.0".ljust(124) + b"\0\1IM" + (struct.pack("<II", 15, len(element)) + element) * 9
    (tmp_path / "a.mat").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.mat: .*its elements are larger than"):
        read_sbd_label(tmp_path / "a.mat")


def test_a_jpeg_of_many_scans_is_refused(tmp_path):
    """Each scan visits all pixels and may be empty: 260 KB of them take minutes."""
    content = encode("JPEG", np.zeros((64, 64), np.uint8), progressive=True)
    scan = content[content.rindex(b"\xff\xda") : content.rindex(b"\xff\xd9")]
    (tmp_path / "a.jpg").write_bytes(content[:-2] + scan * 40 + content[-2:])
    assert read_image(tmp_path / "a.jpg").shape == (3, 64, 64)
    (tmp_path / "a.jpg").write_bytes(content[:-2] + scan * 80 + content[-2:])
    with pytest.raises(DataError, match=r"a\.jpg: a JPEG of \d+ scans"):
        read_image(tmp_path / "a.jpg")


def test_a_jpeg_of_many_exif_segments_is_refused(tmp_path):
    """Pillow copies all that it has for each: 190 MB of them take two minutes."""
    content = encode("JPEG", np.zeros((8, 8), np.uint8))
    exif = b"\xff\xe1\0\x16Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"  # without tags
    (tmp_path / "a.jpg").write_bytes(content[:2] + exif * 60 + content[2:])
    assert read_image(tmp_path / "a.jpg").shape == (3, 8, 8)
    (tmp_path / "a.jpg").write_bytes(content[:2] + exif * 80 + content[2:])
    with pytest.raises(DataError, match=r"a\.jpg: a JPEG of 81 scans and EXIF segments"):
        read_image(tmp_path / "a.jpg")


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.npz", "a.pfm"])
def test_pipes_and_devices_are_refused_instead_of_read_for_ever(tmp_path, name):
    read = read_disparity if name in ("a.npz", "a.pfm") else read_image
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(tmp_path / name)
        with pytest.raises(DataError, match="not a regular file"):
            read(tmp_path / name)
        (tmp_path / name).unlink()


def test_what_a_library_quotes_from_a_damaged_file_can_be_printed():
    assert describe(ValueError("token: \0\x1b[1m\ud800 é\nend")) == "token: ??[1m? é end"
    assert describe(ValueError()) == "ValueError"


def test_files_are_bounded_and_regular(tmp_path):
    (tmp_path / "list").write_bytes(b"a\n" * (2**20 + 1))
    with pytest.raises(DataError, match="list: has 1,048,577 lines"):
        read_lines(tmp_path / "list", "images")
    (tmp_path / "list").write_bytes(b"a\n" + b"a/" * 2049)
    with pytest.raises(DataError, match="list, line 2: has 4,098 characters; at most 4,096 are read"):
        read_lines(tmp_path / "list", "images")
    (tmp_path / "long").write_bytes(bytes(101))
    with pytest.raises(DataError, match="has 101 bytes; at most 100 are read"):
        read_bytes(tmp_path / "long", 100)
    with pytest.raises(DataError, match="is a folder"):
        read_bytes(tmp_path, 100)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_bytes(tmp_path / "pipe", 100)


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.arange(6).reshape(2, 3).T, np.zeros((0, 4))])
def test_npy_equals_numpy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    buffer.seek(0)
    assert np.array_equal(read_npy(buffer, most=6), array)
    buffer.seek(0)
    if array.size:
        with pytest.raises(ValueError, match="more than 5 numbers"):
            read_npy(buffer, most=5)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64, np.int16])
def test_sbd_labels_equal_scipy(tmp_path, compress, dtype):
    from scipy.io import savemat
    from scipy.sparse import csc_matrix

    label = np.random.default_rng(0).integers(0, 21, (7, 9)).astype(dtype)
    cells = np.empty((20, 1), object)
    for i in range(20):
        cells[i, 0] = csc_matrix(np.eye(3, dtype=bool) if i % 2 else np.zeros((3, 3), bool))
    content = {"other": np.eye(3), "GTcls": {"Boundaries": cells, "Segmentation": label, "CategoriesPresent": [[1, 2]]}}
    savemat(tmp_path / "a.mat", content, do_compression=compress)
    actual = read_sbd_label(tmp_path / "a.mat")
    assert actual.dtype == np.uint8 and np.array_equal(actual, label)


def test_sbd_labels_outside_the_classes_are_refused(tmp_path):
    from scipy.io import savemat

    savemat(tmp_path / "a.mat", {"GTcls": {"Segmentation": np.array([[0, -3], [21, 4]], np.int16)}})
    with pytest.raises(DataError, match=r"a\.mat: label with values -3 \.\.\. 21; SBD has 0 \.\.\. 20"):
        read_sbd_label(tmp_path / "a.mat")


def test_values_of_any_depth_and_length_can_be_shown():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert len(shorten(deep)) < 100 and len(shorten("x" * 10**6)) < 100 and len(shorten([10**4000] * 3)) < 300
    assert shorten("a.png") == "'a.png'"


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../x.png", "a/../../x.png", "/etc/passwd", "a\0.png", "\ud800.png", "", ".", "x" * 256, "a/" * 600 + "x"]
)
def test_names_that_leave_the_folder_or_are_none_are_refused(name):
    with pytest.raises(DataError, match=r"^here: .*(leaves the data folder|is not a file name)") as error:
        check_relative("here", name)
    str(error.value).encode()


@pytest.mark.parametrize("name", ["a.png", "sub/a b.png", "..a.png", "x...y", "ä.png", "./a.png"])
def test_other_names_are_kept(name):
    assert check_relative("here", name) == name


def test_a_list_cannot_leave_the_data_folder(tmp_path):
    root = fake_datasets.folder(tmp_path / "data")
    fake_datasets.write_image(tmp_path / "secret" / "x.png")
    with (root / "train.txt").open("a") as file:
        file.write("../../secret/x.png\n")
    with pytest.raises(DataError, match=r"train\.txt, line 4: '\.\./\.\./secret/x' leaves the data folder"):
        create_dataset("folder", "train", root)


def test_a_symbolic_link_in_the_data_folder_is_followed(tmp_path):
    root = fake_datasets.folder(tmp_path / "data")
    pixels = fake_datasets.write_image(tmp_path / "elsewhere" / "x.png")
    (root / "images" / "img0.png").unlink()
    (root / "images" / "img0.png").symlink_to(tmp_path / "elsewhere" / "x.png")
    assert np.array_equal(create_dataset("folder", "train", root)[0].image.numpy(), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["../../secret/x.png", "/etc/passwd", "a\0.png", "\ud800.png", "x" * 5000])
def test_a_coco_file_cannot_leave_the_data_folder(tmp_path, name):
    content = fake_coco.coco(tmp_path)
    content["images"][1]["file_name"] = name
    fake_coco.write(tmp_path, "train2017", content)
    with pytest.raises(DataError, match=r"instances_train2017\.json: image 11: .*(leaves|is not a file name)") as error:
        create_detection_set("coco", "train2017", tmp_path)
    str(error.value).encode()


# -- text and JSON -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"img0\nim\0g1\n", "train.txt, line 2: has a NUL character"),
        ("img0\nimäge\n".encode("latin1"), "train.txt: not readable as text in UTF-8"),
        ("img0\n".encode("utf-16"), "train.txt: not readable as text in UTF-8"),
        (b"x" * 300, "train.txt, line 1: 'xxxx.*' is not a file name"),
        (b"sub" + b"/x" * 3000, r"train.txt, line 1|images/x.jpg: missing"),
    ],
)
def test_lists_that_are_no_text_are_named(tmp_path, content, message):
    root = fake_datasets.folder(tmp_path)
    (root / "train.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        create_dataset("folder", "train", root)[0]


def test_colours_of_many_digits_are_refused(tmp_path):
    root = fake_datasets.folder(tmp_path, classes=f"sky\nroad 1 2 {'9' * 4000}\n")
    with pytest.raises(DataError, match="line 2: a colour is three numbers"):
        create_dataset("folder", "train", root)


def nested(depth):
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"width": 40', b'"width": ' + b"9" * 5000, "not readable as JSON"),
        (b'"width": 40', b'"width": 4e9', "width cannot be"),
        (b'"width": 40', b'"width": 2000000000', "pixels are more than"),
        (b'"width": 40', b'"width": true', "width cannot be True"),
        (b'"width": 40', b'"width": ' + nested(100_000), "nested too deeply"),
        (b'"width": 40', b'"width": ' + nested(900), "width cannot be"),
        (b'"id": 10', b'"id": NaN', "id cannot be nan"),
        (b'"id": 10', b'"id": true', "id cannot be True"),
        (b'"id": 10', b'"id": ' + nested(900), "id cannot be"),
    ],
)
def test_malformed_coco_entries_are_named(tmp_path, old, new, message):
    fake_coco.coco(tmp_path)
    path = tmp_path / "annotations" / "instances_train2017.json"
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    with pytest.raises(DataError, match=rf"instances_train2017\.json: .*{message}"):
        create_detection_set("coco", "train2017", tmp_path)


DEEP = json.loads(nested(900))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bbox", ["4", "5", "10", "10"], "bbox must be the numbers"),
        ("bbox", [True, 5, 10, 10], "bbox must be the numbers"),
        ("bbox", [4, 5, 10, 10, 1], "bbox must be the numbers"),
        ("bbox", [4, 5, float("nan"), 10], "bbox must be the numbers"),
        ("bbox", [4, 5, -10, 10], "has no area"),
        ("bbox", DEEP, "bbox must be the numbers"),
        ("area", DEEP, "area must be a number"),
        ("area", True, "area must be a number"),
        ("iscrowd", DEEP, "iscrowd must be 0 or 1"),
        ("image_id", DEEP, "is not an image"),
        ("category_id", True, "is not a category"),
        ("segmentation", DEEP, "a polygon"),
        ("segmentation", [["4", "5", "14", "5", "14", "15"]], "a polygon is a list of numbers"),
        ("segmentation", [[4, 5, True, 5, 14, 15]], "a polygon is a list of numbers"),
        ("segmentation", [[-9e4, 0, 9e4, 30] * 100], "outline of an object"),
        ("segmentation", [[-9e4, 0, 9e4, 30, -9e4, 30]] * 100, "outline of an object"),
        ("segmentation", {"size": DEEP, "counts": [1200]}, "an RLE"),
        ("segmentation", {"size": [DEEP, 40], "counts": [1200]}, "the RLE is for"),
        ("segmentation", {"size": [30, 40], "counts": DEEP}, "an RLE needs"),
    ],
)
def test_malformed_annotations_are_named(tmp_path, field, value, message):
    content = fake_coco.coco(tmp_path)
    content["annotations"][2][field] = value
    fake_coco.write(tmp_path, "train2017", content)
    problems = create_detection_set("coco", "train2017", tmp_path).problems()
    assert len(problems) == 1 and "annotation 2" in problems[0] and message in problems[0], problems


def test_masks_of_one_image_are_bounded(tmp_path):
    content = fake_coco.coco(tmp_path)
    content["images"][0] |= {"height": 8192, "width": 8192}
    content["annotations"] += [{**content["annotations"][0], "id": 100 + i} for i in range(80)]
    fake_coco.write(tmp_path, "train2017", content)
    problems = create_detection_set("coco", "train2017", tmp_path).problems()
    assert any("masks of its image need more than" in problem for problem in problems)


def test_a_repeated_annotation_of_any_depth_is_compared(tmp_path):
    content = fake_coco.coco(tmp_path)
    content["annotations"][0]["extra"] = DEEP
    content["annotations"].append({**content["annotations"][0]})
    fake_coco.write(tmp_path, "train2017", content)
    (problem,) = create_detection_set("coco", "train2017", tmp_path).problems()
    assert "is listed twice" in problem


def test_a_batch_of_any_python_is_read(tmp_path):
    from hamburger.classification.data.cifar10 import read_batch

    data = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    for i, (key, protocol) in enumerate(((bytes, 2), (str, 2), (bytes, 4), (str, 4))):
        entries = {key("data", "ascii") if key is bytes else "data": data}
        entries[b"labels" if key is bytes else "labels"] = [1, 2, 3]
        path = tmp_path / str(i)
        path.write_bytes(pickle.dumps(entries, protocol=protocol))
        chunk = read_batch(path)
        assert np.array_equal(chunk.images.reshape(3, -1), data) and chunk.labels.tolist() == [1, 2, 3]
    # as Python 2 wrote the official files: byte strings, and a memo that begins with 1
    old = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff"
        b"\xff\xffK\x00tb\x89T\x00\x0c\x00\x00" + data[0].tobytes() + b"tbU\x06labels]K\x07au."
    )
    (tmp_path / "old").write_bytes(old)
    assert np.array_equal(read_batch(tmp_path / "old").images.ravel(), data[0])
