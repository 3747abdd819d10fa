"""Odd files become upright RGB; broken ones are named."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps, PngImagePlugin

from hamburger.errors import InputError
from hamburger.inference.predict_files import read_image

Image.init()
PICTURE = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)


def save(path, image, **options):
    image.save(path, **options)
    return read_image(path)


def as_array(tensor):
    assert tensor.dtype == torch.uint8 and tensor.shape[0] == 3
    return tensor.permute(1, 2, 0).numpy()


@pytest.mark.parametrize("name", ["a.png", "a.webp", "A.PNG", "süß 写真.png", "a.bmp", "a.tif", "a.TIFF"])
def test_lossless_formats_keep_colours(tmp_path, name):
    options = {"lossless": True} if name.endswith("webp") else {}
    assert np.array_equal(as_array(save(tmp_path / name, Image.fromarray(PICTURE), **options)), PICTURE)


def test_jpeg_is_close_to_the_original(tmp_path):
    flat = Image.new("RGB", (33, 17), (200, 40, 90))
    actual = as_array(save(tmp_path / "a.jpg", flat, quality=95))
    assert actual.shape == (17, 33, 3)
    assert np.abs(actual.astype(int) - (200, 40, 90)).max() < 6


def test_format_is_detected_by_content(tmp_path):
    Image.fromarray(PICTURE).save(tmp_path / "a.jpg", format="PNG")
    assert np.array_equal(as_array(read_image(tmp_path / "a.jpg")), PICTURE)


@pytest.mark.parametrize("bits", [1, 8, 16])
def test_grey_becomes_three_equal_channels(tmp_path, bits):
    grey = PICTURE[..., 0]
    image, expected = {
        1: (Image.fromarray(grey > 127), np.where(grey > 127, 255, 0)),
        8: (Image.fromarray(grey), grey),
        16: (Image.fromarray(grey.astype(np.uint16) * 257), grey),
    }[bits]
    actual = as_array(save(tmp_path / "a.png", image))
    assert np.array_equal(actual, np.repeat(expected[..., None], 3, axis=2))


def test_palette_images_become_rgb(tmp_path):
    indices = (np.arange(35) % 3).astype(np.uint8).reshape(7, 5)
    image = Image.fromarray(indices)
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    actual = as_array(save(tmp_path / "a.png", image))
    assert np.array_equal(actual, np.array([[10, 20, 30], [40, 50, 60], [70, 80, 90]])[indices])


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_transparent_pixels_become_white(tmp_path, mode):
    options = {}
    if mode in ("RGBA", "LA"):
        image = Image.new(mode, (4, 2), (0,) * len(mode))
        image.paste((90,) * (len(mode) - 1) + (255,), (2, 0, 4, 2))
    else:
        image = Image.new(mode, (4, 2), 0 if mode == "P" else (0, 0, 0))
        if mode == "P":
            image.putpalette([0, 0, 0, 90, 90, 90])
        image.paste(1 if mode == "P" else (90, 90, 90), (2, 0, 4, 2))
        options["transparency"] = 0 if mode == "P" else (0, 0, 0)
    actual = as_array(save(tmp_path / "a.png", image, **options))
    assert (actual[:, :2] == 255).all() and (actual[:, 2:] == 90).all()


def test_half_transparent_pixels_blend_with_white(tmp_path):
    actual = as_array(save(tmp_path / "a.png", Image.new("RGBA", (1, 1), (0, 0, 0, 128))))
    assert np.abs(actual.astype(int) - 127).max() <= 1


def test_cmyk_becomes_rgb(tmp_path):
    actual = as_array(save(tmp_path / "a.jpg", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95))
    assert actual[..., 0].min() > 240 and actual[..., 1:].max() < 15


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "webp", "jpg", "tif"])
def test_exif_rotation_is_applied(tmp_path, orientation, kind):
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:8, :8] = 255  # one bright corner says which way is up
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "webp" else {}
    actual = as_array(save(tmp_path / f"a.{kind}", Image.fromarray(pixels), exif=exif.tobytes(), **options))
    turned = {1: 0, 2: 1, 3: 1, 4: 0, 5: 0, 6: 1, 7: 1, 8: 0}  # is the corner at the right?
    down = {1: 0, 2: 0, 3: 1, 4: 1, 5: 0, 6: 0, 7: 1, 8: 1}
    assert actual.shape == ((16, 32, 3) if orientation < 5 else (32, 16, 3))
    y, x = -4 if down[orientation] else 4, -4 if turned[orientation] else 4
    assert actual[y, x].min() > 200
    assert actual.mean() < 80  # and only that corner


def test_invalid_exif_is_ignored(tmp_path):
    Image.fromarray(PICTURE).save(tmp_path / "a.jpg", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff garbage")
    assert read_image(tmp_path / "a.jpg").shape == (3, 7, 5)


@pytest.mark.parametrize("kind", ["png", "webp", "gif", "tif"])
def test_first_frame_of_an_animation_is_used(tmp_path, kind):
    frames = [Image.new("RGB", (8, 8), (value, 0, 0)) for value in (200, 0)]
    options = {"lossless": True} if kind == "webp" else {}
    frames[0].save(tmp_path / f"a.{kind}", save_all=True, append_images=frames[1:], **options)
    assert (read_image(tmp_path / f"a.{kind}")[0] == 200).all()


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "bmp", "gif", "tif"])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.05])
def test_truncated_file_is_named(tmp_path, kind, share):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    noise.save(tmp_path / f"whole.{kind}")
    content = (tmp_path / f"whole.{kind}").read_bytes()
    (tmp_path / f"half.{kind}").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError, match=rf"half\.{kind}: "):
        read_image(tmp_path / f"half.{kind}")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBPVP8 "])
def test_file_that_is_not_an_image_is_named(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.png: "):
        read_image(tmp_path / "a.png")


def test_other_formats_are_refused(tmp_path):
    Image.fromarray(PICTURE).save(tmp_path / "a.png", format="TGA")
    with pytest.raises(InputError, match="no JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF or HEIC"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"])
@pytest.mark.parametrize("mode", ["L", "RGB", "P", "I;16"])
def test_tiff_of_every_compression_and_mode_is_read(tmp_path, compression, mode):
    grey = np.arange(20 * 30, dtype=np.uint16).reshape(20, 30) % 251
    values = {"I;16": grey * 257, "RGB": np.stack([grey, 250 - grey, grey], -1)}.get(mode, grey)
    image = Image.fromarray(values.astype(np.uint16 if mode == "I;16" else np.uint8))
    if mode == "P":
        image.putpalette([value for i in range(256) for value in (i, i, i)])
    expected = values if mode == "RGB" else np.repeat(grey[..., None], 3, -1)
    np.testing.assert_array_equal(as_array(save(tmp_path / "a.tif", image, compression=compression)), expected)


def test_tiff_of_floats_is_refused(tmp_path):
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(tmp_path / "a.tif")
    with pytest.raises(InputError, match=r"a\.tif: its pixels are floating-point numbers; save 8 or 16 bits"):
        read_image(tmp_path / "a.tif")


@pytest.mark.skipif("AVIF" not in Image.SAVE, reason="Pillow is older than 11.3, or built without AVIF")
def test_avif_is_read(tmp_path):
    actual = as_array(save(tmp_path / "a.avif", Image.new("RGB", (24, 16), (200, 30, 90)), quality=95))
    assert actual.shape == (16, 24, 3) and np.abs(actual.astype(int) - [200, 30, 90]).max() < 5


def test_heic_is_read_or_names_its_package(tmp_path):
    try:
        import pillow_heif
    except ImportError:
        (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic")
        with pytest.raises(InputError, match=r"a\.heic: reading HEIC needs .*pip install '\.\[heic\]'"):
            read_image(tmp_path / "a.heic")
        return
    pillow_heif.register_heif_opener()
    actual = as_array(save(tmp_path / "a.heic", Image.new("RGB", (64, 48), (200, 30, 90)), quality=95))
    assert actual.shape == (48, 64, 3) and np.abs(actual.astype(int) - [200, 30, 90]).max() < 8


@pytest.mark.parametrize("attribute", ["tiff:Orientation>6<", 'tiff:Orientation="6"'])
def test_rotation_in_xmp_is_applied(tmp_path, attribute):
    path = tmp_path / "a.jpg"
    Image.new("RGB", (32, 16)).save(path)
    xmp = b"http://ns.adobe.com/xap/1.0/\0" + f"<x:xmpmeta {attribute} />".encode()
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(xmp)) + xmp
    path.write_bytes(path.read_bytes()[:2] + segment + path.read_bytes()[2:])
    assert as_array(read_image(path)).shape == (32, 16, 3)


def test_rotation_in_a_text_of_a_png_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", "\nexif\n  80\n" + exif.tobytes().hex())  # as ImageMagick writes it
    actual = as_array(save(tmp_path / "a.png", Image.new("RGB", (32, 16)), pnginfo=text))
    assert actual.shape == (32, 16, 3)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(InputError, match=r"a\.png: missing"):
        read_image(tmp_path / "a.png")
    with pytest.raises(InputError, match="is a folder"):
        read_image(tmp_path)


def test_decompression_bomb_raises_before_decoding(tmp_path):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    file = io.BytesIO(b"")
    file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)))
    file.write(chunk(b"IEND", b""))
    (tmp_path / "bomb.png").write_bytes(file.getvalue())
    with pytest.raises(InputError, match=r"bomb\.png: has more than the 67,108,864 pixels"):
        read_image(tmp_path / "bomb.png")


def test_orientation_matches_pillow(tmp_path):
    """The table above was written by hand; Pillow agrees."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PICTURE).save(tmp_path / "a.png", exif=exif.tobytes())
    with Image.open(tmp_path / "a.png") as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert np.array_equal(as_array(read_image(tmp_path / "a.png")), expected)
