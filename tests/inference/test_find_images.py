"""Images from files and folders; every output gets its own name."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from hamburger.inference.predict_files import find_images


@pytest.fixture
def tree(tmp_path):
    for name in ("b.jpg", "a.PNG", "notes.txt", "._b.jpg", "sub/a.webp", "sub/.thumbs/c.jpg", "out/a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def names(inputs):
    return [photo.name for photo in inputs.photos]


def test_folder_is_read_flat_and_sorted(tree):
    inputs = find_images([tree])
    assert names(inputs) == ["a", "b"]
    assert inputs.left_out == (tree / "notes.txt",)


def test_recursive_keeps_subfolders_and_skips_the_output(tree):
    inputs = find_images([tree], recursive=True, outside=tree / "out")
    assert names(inputs) == ["a", "b", "sub/a"]


def test_equal_stems_get_unique_names(tree):
    (tree / "b.png").touch()
    inputs = find_images([tree, tree / "sub", tree / "out", tree / "b.webp"])
    assert names(inputs) == ["a", "b", "b-png", "a-webp", "a-png", "b-webp"]
    assert len({name.casefold() for name in names(inputs)}) == len(inputs.photos)


def test_many_equal_stems_get_unique_names(tmp_path):
    folders = [tmp_path / str(i) for i in range(4)]
    for folder in folders:
        folder.mkdir()
        (folder / "a.jpg").touch()
    (tmp_path / "a-jpg.jpg").touch()
    inputs = find_images([tmp_path / "a-jpg.jpg", *folders])
    assert len(set(names(inputs))) == 5


def first_free(name, taken):
    """As `find_images` names images, by trying every number from the first."""
    stem = f"{name}-jpg" if name.casefold() in taken else name
    candidates = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    free = next(each for each in candidates if each.casefold() not in taken)
    taken.add(free.casefold())
    return free


def test_each_name_is_the_first_that_is_free():
    stems = ["a", "a-jpg", "A", "a-jpg-3", "a", "a-2", "a", "a-jpg-2", "straße", "STRASSE", "a-jpg-2", "a-jpg-2-2"] * 3
    taken = set()
    expected = [first_free(stem, taken) for stem in stems]
    assert names(find_images([Path(f"{i}/{stem}.jpg") for i, stem in enumerate(stems)])) == expected


def test_naming_images_of_one_stem_takes_linear_time():
    paths = [Path(f"{i}/a.jpg") for i in range(20_000)]  # trying every number would take minutes
    begun = time.process_time()
    found = names(find_images(paths))
    assert found[:3] == ["a", "a-jpg", "a-jpg-2"] and found[-1] == "a-jpg-19999"
    assert time.process_time() - begun < 20


def test_repeated_file_counts_once(tree):
    inputs = find_images([tree / "b.jpg", tree, tree / "sub" / ".." / "b.jpg"])
    assert names(inputs) == ["b", "a"]
    assert len(inputs.repeated) == 2


def test_broken_link_is_listed_as_failed(tree):
    (tree / "gone.jpg").symlink_to(tree / "moved" / "gone.jpg")
    (tree / "gone.txt").symlink_to("nowhere")
    (tree / "there.jpg").symlink_to(tree / "sub" / "a.webp")
    inputs = find_images([tree])
    assert names(inputs) == ["a", "b", "there"]
    [(path, why)] = inputs.failed
    assert path == tree / "gone.jpg" and "moved/gone.jpg, which does not exist" in why
    (tree / "sub" / "a.webp").unlink()
    (tree / "sub" / "a.webp").symlink_to("nowhere.webp")
    assert [path.name for path, _ in find_images([tree / "sub"]).failed] == ["a.webp"]


def test_a_link_to_itself_is_a_broken_link(tree):
    (tree / "loop.jpg").symlink_to("loop.jpg")
    inputs = find_images([tree, tree / "loop.jpg"], recursive=True, outside=tree / "out")
    assert names(inputs) == ["a", "b", "sub/a", "loop"]
    assert [path.name for path, _ in inputs.failed] == ["loop.jpg"]


def test_empty_folder_raises(tmp_path):
    (tmp_path / "inner").mkdir()
    inputs = find_images([tmp_path])
    assert not inputs.photos
    [(path, why)] = inputs.failed
    assert path == tmp_path and "--recursive" in why


def test_missing_file_is_listed(tmp_path):
    assert find_images([tmp_path / "gone.jpg"]).photos[0].path == Path(tmp_path / "gone.jpg")
