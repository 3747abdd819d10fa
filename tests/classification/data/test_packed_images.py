"""The packed image cache: atomic, keyed by content; and the batches read from it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import fake_image_folders
import numpy as np
import pytest
import torch

from hamburger.classification.data.base import build_key, load_images, open_source, read_packed
from hamburger.classification.data.batches import ImageBatches
from hamburger.errors import DataError


@pytest.fixture
def tree(tmp_path):
    return fake_image_folders.folders(tmp_path / "data")


def source(tree, size=16):
    return open_source("folder", "train", size=size, root=tree)


def files(folder):
    """All files except locks, which are never removed."""
    return [path for path in folder.iterdir() if path.suffix != ".lock"]


def only(folder):
    (path,) = files(folder)
    return path


HOLD = """
import fcntl, sys
lock = open(sys.argv[1], "ab")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def another_packs(lock):
    """A process that packs images until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_files_are_read_once(tree, tmp_path):
    cache = tmp_path / "cache"
    first = load_images(source(tree), cache=cache)
    packed = only(cache)
    made = packed.stat().st_mtime_ns
    opened = source(tree)
    opened.read = lambda index: pytest.fail("it was read again")
    again = load_images(opened, cache=cache)
    assert isinstance(again.images, np.memmap)
    assert packed.stat().st_mtime_ns == made
    assert again.digest == first.digest
    np.testing.assert_array_equal(again.images, first.images)


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: content[:-1],
        lambda content: content[:100],
        lambda content: b"",
        lambda content: content[:50] + bytes([content[50] ^ 1]) + content[51:],
        lambda content: content[: 6 * 768] + b"\7" + content[6 * 768 + 1 :],
        lambda content: content + b"more",
    ],
    ids=["cut by one", "truncated", "empty", "a pixel", "a label", "longer"],
)
def test_a_damaged_file_is_detected_and_rebuilt(tree, tmp_path, harm):
    cache = tmp_path / "cache"
    whole = load_images(source(tree), cache=cache)
    packed = only(cache)
    content = packed.read_bytes()
    packed.write_bytes(harm(content))
    with pytest.raises(ValueError):
        read_packed(packed)
    notes = []
    again = load_images(source(tree), cache=cache, note=notes.append)
    assert len(notes) == 1 and "rebuilding it" in notes[0]
    assert again.digest == whole.digest
    assert packed.read_bytes() == content


def test_changed_files_and_other_sizes_are_other_keys(tree, tmp_path):
    cache = tmp_path / "cache"
    first = load_images(source(tree), cache=cache)
    load_images(source(tree, size=8), cache=cache)
    assert len(files(cache)) == 2
    fake_image_folders.folders(tree, classes=("cats",), each=2)  # the same names written again: other times
    changed = tree / "train" / "cats" / "0.png"
    changed.write_bytes((tree / "train" / "dogs" / "0.png").read_bytes())
    new = load_images(source(tree), cache=cache)
    assert new.digest != first.digest
    np.testing.assert_array_equal(new.images[0], new.images[3])
    assert len(files(cache)) == 3


def test_an_unwritable_cache_folder_is_named(tree, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file: packed images cannot be written.*XDG_CACHE_HOME"):
        load_images(source(tree), cache=tmp_path / "file")


def test_a_folder_in_place_of_the_packed_file_is_named(tree, tmp_path):
    cache = tmp_path / "cache"
    load_images(source(tree), cache=cache)
    packed = only(cache)
    packed.unlink()
    packed.mkdir()
    with pytest.raises(DataError, match=r"\.images: packed images cannot be read.*; remove it, or .*XDG_CACHE_HOME"):
        load_images(source(tree), cache=cache)


def test_processes_that_pack_concurrently_do_not_collide(tree, tmp_path, monkeypatch):
    """On two machines that share the folder they may even have one number."""
    monkeypatch.setattr("os.getpid", lambda: 1)
    cache, slow = tmp_path / "cache", source(tree)
    read, inner = slow.read, []

    def reading(index):
        if index == 3 and not inner:
            inner.append(load_images(source(tree), cache=cache).digest)
        return read(index)

    slow.read = reading
    assert load_images(slow, cache=cache).digest == inner[0]
    assert read_packed(only(cache))[2] == inner[0]
    assert only(cache).stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(sys.platform != "linux", reason="locks and kills as Linux has them")
@pytest.mark.parametrize("crashed", [False, True], ids=["it finishes", "it is killed"])
def test_a_second_process_waits_and_reads_the_packed_file(tree, tmp_path, crashed):
    whole = load_images(source(tree), cache=tmp_path / "other")
    packed = only(tmp_path / "other")
    cache = tmp_path / "cache"
    cache.mkdir()
    opened, reads, noted = source(tree), [], threading.Event()
    read = opened.read
    opened.read = lambda index: (reads.append(index), read(index))[1]
    with another_packs(cache / f".{packed.name}.lock") as process, ThreadPoolExecutor(1) as second:
        try:
            waiting = second.submit(load_images, opened, cache=cache, note=lambda text: noted.set())
            assert noted.wait(60) and not reads and not waiting.done()
            if not crashed:
                (cache / packed.name).write_bytes(packed.read_bytes())
        finally:
            process.kill()
        assert waiting.result(60).digest == whole.digest
    assert sorted(reads) == (list(range(6)) if crashed else [])


def test_a_cache_that_is_only_read_needs_no_lock(tree, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    digest = load_images(source(tree), cache=cache).digest
    for path in cache.glob(".*.lock"):
        path.unlink()
    monkeypatch.setattr("hamburger.classification.data.base.one_at_a_time", lambda *_: pytest.fail("locked"))
    assert load_images(source(tree), cache=cache).digest == digest


def test_cifar_batches_are_identified_by_content(tmp_path):
    roots = [fake_image_folders.cifar_batches(tmp_path / name) for name in ("a", "b")]
    changed = roots[1] / "cifar-10-batches-py" / "data_batch_1"
    other = bytearray(changed.read_bytes())
    other[other.index(b"data") + 200] ^= 1
    changed.write_bytes(other)
    for path in tmp_path.rglob("*_batch*"):
        os.utime(path, (0, 0))
    one, two = (build_key(open_source("cifar10", "train", size=32, root=root)) for root in roots)
    assert one != two


def test_a_kill_while_packing_leaves_no_packed_file(tree, tmp_path):
    cache = tmp_path / "cache"
    broken = source(tree)
    read = broken.read
    broken.read = lambda index: read(index) if index < 4 else (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        load_images(broken, cache=cache)
    assert not files(cache)


def indices(feed, step):
    """The images of a global batch of one process."""
    return [sample for part in feed.parts(step) for sample, _ in part]


def test_batches_depend_on_their_number_alone():
    images = load_images(open_source("figures", "train", size=16, length=22))
    feed = ImageBatches(images, batch=8, flip=True, seed=3)
    run = [parts[0] for parts in feed.run(0, 6)]
    (later,) = next(iter(feed.run(4, 5)))
    torch.testing.assert_close(run[4].images, later.images, rtol=0, atol=0)
    seen = np.concatenate([indices(feed, number) for number in range(11)])
    for epoch in range(4):
        assert sorted(seen[22 * epoch : 22 * (epoch + 1)]) == list(range(22))
    assert run[0].images.min() >= -1 and run[0].images.max() <= 1
    whole = torch.from_numpy(images.images[indices(feed, 2)]).float() / 127.5 - 1
    same = (run[2].images == whole).flatten(1).all(1)
    mirrored = (run[2].images == whole.flip(3)).flatten(1).all(1)
    assert (same | mirrored).all() and same.any() and mirrored.any()
    assert run[2].labels.tolist() == images.labels[indices(feed, 2)].tolist()


def test_padding_crops_at_random_positions():
    images = load_images(open_source("figures", "train", size=16, length=64))
    feed = ImageBatches(images, batch=64, padding=2, seed=3)
    (batch,) = next(iter(feed.run(0, 1)))
    padded = np.pad(images.images[indices(feed, 0)], ((0, 0), (0, 0), (2, 2), (2, 2)))  # black
    positions = set()
    for actual, whole in zip(batch.images.numpy(), padded, strict=True):
        views = {(y, x): whole[:, y : y + 16, x : x + 16] / np.float32(127.5) - 1 for y in range(5) for x in range(5)}
        positions.add(next(place for place, view in views.items() if np.array_equal(view, actual)))
    assert len(positions) > 15  # of 25
    (flipped,) = next(iter(ImageBatches(images, batch=64, padding=2, flip=True, seed=3).run(0, 1)))
    same = (flipped.images == batch.images).flatten(1).all(1)
    mirrored = (flipped.images == batch.images.flip(3)).flatten(1).all(1)
    assert (same | mirrored).all() and same.any() and mirrored.any()  # flips do not change the positions


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_processes_and_micro_batches_share_one_batch(tree, tmp_path, resident):
    images = load_images(source(tree), cache=tmp_path / "cache")
    options = {"batch": 8, "flip": True, "padding": 2, "seed": 1, "resident": resident, "workers": 2}
    (whole,) = next(iter(ImageBatches(images, **options).run(5, 6)))
    shares = []
    for rank in range(2):
        feed = ImageBatches(images, rank=rank, world=2, accumulate=2, **options)
        assert (feed.resident_samples is None) == (resident == "no")
        shares.append(next(iter(feed.run(5, 6))))
    combined = torch.cat([shares[rank][part].images for part in range(2) for rank in range(2)])
    torch.testing.assert_close(combined, whole.images, rtol=0, atol=0)
