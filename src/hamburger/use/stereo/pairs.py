"""Which stereo pairs a person means by files and folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hamburger.data.stereo.middlebury import Middlebury
from hamburger.errors import OptionError
from hamburger.use.photos import Found, Photo, find_photos


def find_pairs(paths: Sequence[Path], *, recursive: bool = False, outside: Path | None = None) -> Found:
    """LEFT RIGHT, as often as one likes, or folders as those of Middlebury, but for what lies in `outside`."""
    if recursive:
        raise OptionError("predict: folders of pairs are looked through to any depth; leave out --recursive")
    folders, files = [path for path in paths if path.is_dir()], [path for path in paths if not path.is_dir()]
    if len(files) % 2:
        raise OptionError(
            f"predict: stereo takes images in twos, LEFT RIGHT, or folders of pairs; got {len(files)} images"
        )
    lefts = find_photos(files[::2]).photos
    if 2 * len(lefts) < len(files):
        raise OptionError("predict: the same left image is named twice; name each pair once")
    found = [Photo(left.path, left.name, right) for left, right in zip(lefts, files[1::2], strict=True)]
    for folder in folders:
        for pair in Middlebury("val", root=folder).pairs:
            if outside is None or not pair.left.resolve().is_relative_to(outside.resolve()):
                found.append(Photo(pair.left, pair.id, pair.right))
    taken = [pair.name for pair in found]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        raise OptionError(f"predict: several pairs are called {', '.join(twice)}; predict them into different folders")
    return Found(tuple(found), (), (), ())
