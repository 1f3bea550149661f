"""A reader's own folder of images: what is packed, what is refused, and in which words."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bigtrain_nb import tf
from bigtrain_nb.data.images import image_folder
from bigtrain_nb.data.records import unpack

RNG = np.random.default_rng(0)


def noise(kind, size=(40, 30)):
    """The bytes of an image file of random pixels."""
    content = io.BytesIO()
    Image.fromarray(RNG.integers(0, 255, (*size[::-1], 3), np.uint8)).save(content, kind)
    return content.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Two classes of five JPEG files each, one of them in a folder further down."""
    folder = tmp_path / "pets"
    for name in ("cat", "dog"):
        (folder / name / "more").mkdir(parents=True)
        for i in range(4):
            (folder / name / f"{i}.jpg").write_bytes(noise("JPEG"))
        (folder / name / "more" / "4.JPG").write_bytes(noise("JPEG"))
    return folder


@pytest.fixture
def pack(tmp_path):
    def pack(folder, **settings):
        return image_folder(folder, **{"shards": 2, "cache": tmp_path / "cache", **settings})

    return pack


def made(tmp_path):
    return list((tmp_path / "cache").glob("*"))


def all_files(data):
    return [Path(file) for file in data.files + data.test_files]


def test_jpegs_are_packed_byte_for_byte_under_their_class(folder, pack):
    data = pack(folder, test_fraction=0.2)
    assert (data.classes, data.count, data.test_count, data.skipped) == (("cat", "dog"), 8, 2, ())
    for name in data.classes:
        own = sorted(path.read_bytes() for path in (folder / name).rglob("*.[jJ]*"))
        assert own == sorted(path.read_bytes() for path in all_files(data) if path.parent.name == name)
    records = tf.data.TFRecordDataset(list(data.shards)).map(unpack)
    for (jpeg, label), file in zip(records, data.files, strict=True):
        assert jpeg.numpy() == Path(file).read_bytes()
        assert data.classes[int(label)] == Path(file).parent.name


@pytest.mark.parametrize("kind, mode", [("PNG", "RGBA"), ("GIF", "P")])
def test_other_formats_become_jpeg(folder, pack, kind, mode):
    content = io.BytesIO()
    Image.new("RGB", (40, 30), (204, 51, 102)).convert(mode).save(content, kind)
    (folder / "cat" / "other.img").write_bytes(content.getvalue())
    own = {path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    (new,) = (path for path in all_files(pack(folder)) if path.read_bytes() not in own)
    image = tf.io.decode_jpeg(new.read_bytes(), channels=3).numpy()
    assert new.parent.name == "cat" and image.shape == (30, 40, 3)
    wanted = np.asarray(Image.open(content).convert("RGB"), int)
    assert abs(image.astype(int) - wanted).mean() < 8


def test_damaged_files_are_named_or_left_out(folder, pack, tmp_path):
    good = noise("JPEG", (200, 200))
    damaged = {
        "cat/cut.jpg": good[: len(good) // 2],
        "cat/empty.jpg": b"",
        "cat/notes.txt": b"these are my cats",
        "dog/cut.png": noise("PNG", (200, 200))[:5000],
        "dog/header.jpg": good[:200],
    }
    for name, content in damaged.items():
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match="5 of 15 files cannot be read; .* skip_damaged=True") as caught:
        pack(folder)
    assert str(caught.value).splitlines()[1:] == list(damaged)
    assert made(tmp_path) == []
    data = pack(folder, skip_damaged=True)
    assert data.skipped == tuple(damaged) and data.count + data.test_count == 10
    assert pack(folder, skip_damaged=True) == data


def test_folders_without_images(tmp_path, pack):
    empty = tmp_path / "empty"
    with pytest.raises(FileNotFoundError, match="empty: there is no such folder"):
        pack(empty)
    (empty / "cat").mkdir(parents=True)
    (empty / "lone.jpg").write_bytes(noise("JPEG"))
    with pytest.raises(ValueError, match="empty holds no 8-bit images in a folder for each class"):
        pack(empty)
    (empty / "cat" / "bad.jpg").write_bytes(b"bad")
    with pytest.raises(ValueError, match="none of its 1 files can be read"):
        pack(empty, skip_damaged=True)
    assert made(tmp_path) == []
