"""Images from files and folders; every output gets its own name."""

from __future__ import annotations

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


def test_empty_folder_raises(tmp_path):
    (tmp_path / "inner").mkdir()
    inputs = find_images([tmp_path])
    assert not inputs.photos
    [(path, why)] = inputs.failed
    assert path == tmp_path and "--recursive" in why


def test_missing_file_is_listed(tmp_path):
    assert find_images([tmp_path / "gone.jpg"]).photos[0].path == Path(tmp_path / "gone.jpg")
