"""A reader's own folder of images: what is packed, what is refused, and in which words."""

import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from bigtrain_nb.data.images import image_folder

RNG = np.random.default_rng(0)


def encoded(kind, mode="RGB", size=(40, 30)):
    channels = len(Image.new(mode, (1, 1)).getbands())
    pixels = RNG.integers(0, 255, (*size[::-1], channels), np.uint8)
    image = Image.merge(mode, [Image.fromarray(pixels[..., i]) for i in range(channels)])
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Two classes of five JPEG files each, one of them in a folder further down."""
    folder = tmp_path / "pets"
    for name in ("cat", "dog"):
        (folder / name / "more").mkdir(parents=True)
        for i in range(4):
            (folder / name / f"{i}.jpg").write_bytes(encoded("JPEG"))
        (folder / name / "more" / "4.JPG").write_bytes(encoded("JPEG"))
    return folder


@pytest.fixture
def pack(tmp_path):
    def pack(folder, **settings):
        return image_folder(folder, **{"shards": 2, "cache": tmp_path / "cache", **settings})

    return pack


def made(tmp_path):
    cache = tmp_path / "cache"
    return [path.name for path in cache.iterdir()] if cache.exists() else []


def all_files(data):
    return [Path(file) for file in data.files + data.test_files]


def test_jpegs_are_packed_byte_for_byte_under_their_class(folder, pack):
    data = pack(folder, test_fraction=0.2)
    assert (data.classes, data.count, data.test_count, data.skipped) == (("cat", "dog"), 8, 2, ())
    assert data.verify() == 10
    for name in data.classes:
        own = sorted(path.read_bytes() for path in (folder / name).rglob("*.[jJ]*"))
        assert own == sorted(path.read_bytes() for path in all_files(data) if path.parent.name == name)
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    for record, file in zip(tf.data.TFRecordDataset(list(data.shards)), data.files, strict=True):
        example = tf.io.parse_single_example(record, features)
        assert example["image"].numpy() == Path(file).read_bytes()
        assert data.classes[int(example["label"])] == Path(file).parent.name


def test_the_seed_chooses_the_split(folder, pack):
    def tests(seed):
        return sorted(Path(file).read_bytes() for file in pack(folder, seed=seed, test_fraction=0.3).test_files)

    assert len(tests(0)) == 3 and len({tuple(tests(seed)) for seed in range(6)}) > 1


def test_made_once_and_again_when_a_file_changes(folder, pack):
    first = pack(folder)
    before = Path(first.shards[0]).stat().st_mtime_ns
    assert pack(folder) == first and Path(first.shards[0]).stat().st_mtime_ns == before
    (folder / "cat" / "0.jpg").write_bytes(encoded("JPEG", size=(50, 50)))
    (folder / "dog" / "5.jpg").write_bytes(encoded("JPEG"))
    second = pack(folder)
    assert second.root != first.root and second.count + second.test_count == 11


@pytest.mark.parametrize("kind, mode", [("JPEG", "L"), ("JPEG", "CMYK"), ("JPEG", "YCbCr")])
def test_other_jpegs_decode_to_three_channels(folder, pack, kind, mode):
    content = encoded(kind, mode)
    (folder / "cat" / "other.jpg").write_bytes(content)
    packed = [path.read_bytes() for path in all_files(pack(folder))]
    assert content in packed
    assert tf.io.decode_jpeg(content, channels=3).shape == (30, 40, 3)


@pytest.mark.parametrize(
    "kind, mode",
    [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "L"), ("PNG", "1"), ("GIF", "P"), ("TIFF", "CMYK"), ("WEBP", "RGB")],
)
def test_other_formats_become_jpeg(folder, pack, kind, mode):
    content = io.BytesIO()
    Image.new("RGB", (40, 30), (204, 51, 102)).convert(mode).save(content, kind)
    (folder / "cat" / "other.img").write_bytes(content.getvalue())
    data = pack(folder)
    own = {path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    (new,) = (path for path in all_files(data) if path.read_bytes() not in own)
    image = tf.io.decode_jpeg(new.read_bytes(), channels=3).numpy()
    assert new.parent.name == "cat" and image.shape == (30, 40, 3)
    wanted = np.asarray(Image.open(content).convert("RGB"), int)
    assert abs(image.astype(int) - wanted).mean() < 8


@pytest.mark.parametrize(
    "kind, pixel", [("PNG", np.uint16), ("TIFF", np.uint16), ("TIFF", np.int32), ("TIFF", np.float32)]
)
def test_gray_images_of_more_bits_are_not_taken(folder, pack, kind, pixel):
    Image.fromarray(np.ones((30, 40), pixel)).save(folder / "cat" / "deep.img", kind)
    with pytest.raises(ValueError, match=r"1 of 11 files cannot be read as 8-bit images; .*\s+cat/deep.img"):
        pack(folder)
    assert pack(folder, skip_damaged=True).skipped == ("cat/deep.img",)


def damage(folder):
    """Put every sort of damaged file among the good ones; return their names."""
    good = encoded("JPEG", size=(200, 200))
    damaged = {
        "cat/cut.jpg": good[: len(good) // 2],
        "cat/empty.jpg": b"",
        "cat/notes.txt": b"these are my cats",
        "dog/header.jpg": good[:200],
        "dog/named.jpg": b"this is no picture",
        "dog/cut.png": encoded("PNG", size=(200, 200))[:5000],
    }
    for name, content in damaged.items():
        (folder / name).write_bytes(content)
    return tuple(sorted(damaged))


def test_damaged_files_are_all_named(folder, pack, tmp_path):
    names = damage(folder)
    with pytest.raises(ValueError, match="6 of 16 files cannot be read as 8-bit images; skip_damaged=True") as caught:
        pack(folder)
    assert tuple(str(caught.value).splitlines()[1:]) == names
    assert made(tmp_path) == []


def test_a_long_list_of_damaged_files_is_cut(folder, pack):
    for i in range(12):
        (folder / "cat" / f"bad{i:02}.jpg").write_bytes(b"bad")
    with pytest.raises(ValueError, match="12 of 22 files") as caught:
        pack(folder)
    assert str(caught.value).splitlines()[-2:] == ["cat/bad09.jpg", "and 2 more"]


def test_damaged_files_are_left_out_and_listed_if_wanted(folder, pack):
    names = damage(folder)
    data = pack(folder, skip_damaged=True)
    assert data.skipped == names
    assert data.count + data.test_count == data.verify() == 10
    assert pack(folder, skip_damaged=True).skipped == names
    assert (folder / "cat" / "notes.txt").exists()


def test_hidden_files_are_no_images(folder, pack):
    (folder / "cat" / ".DS_Store").write_bytes(b"hidden")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden")
    (folder / "README.txt").write_text("beside the classes")
    data = pack(folder)
    assert data.classes == ("cat", "dog") and data.count + data.test_count == 10


def test_folders_without_images(tmp_path, pack):
    empty = tmp_path / "empty"
    with pytest.raises(FileNotFoundError, match="empty: there is no such folder"):
        pack(empty)
    empty.mkdir()
    with pytest.raises(ValueError, match="empty has no files in subfolders; expected is one per class"):
        pack(empty)
    (empty / "lone.jpg").write_bytes(encoded("JPEG"))
    with pytest.raises(ValueError, match="empty has no files in subfolders"):
        pack(empty)
    (empty / "cat").mkdir()
    with pytest.raises(ValueError, match="empty has no files in subfolders"):
        pack(empty)
    (empty / "cat" / "bad.jpg").write_bytes(b"bad")
    with pytest.raises(ValueError, match="none of its 1 files can be read as 8-bit images"):
        pack(empty, skip_damaged=True)
    (empty / "cat" / "good.jpg").write_bytes(encoded("JPEG"))
    with pytest.raises(ValueError, match="only one image"):
        pack(empty, skip_damaged=True)
    assert made(tmp_path) == []


def test_more_shards_than_train_images(folder, pack, tmp_path):
    with pytest.raises(ValueError, match="shards=10 must be .* at most 9, the count of train images"):
        pack(folder, shards=10)
    assert made(tmp_path) == []


@pytest.mark.parametrize(
    "setting, value, allowed",
    [
        ("shards", 0, "at least 1"),
        ("shards", None, "a whole number"),
        ("test_fraction", 0, "between 0 and 1"),
        ("test_fraction", 1.0, "between 0 and 1"),
        ("test_fraction", "some", "between 0 and 1"),
        ("test_fraction", float("nan"), "between 0 and 1"),
        ("seed", -3, "at least 0"),
    ],
)
def test_bad_settings_are_refused(folder, pack, tmp_path, setting, value, allowed):
    with pytest.raises(ValueError, match=f"{setting}={value!r} must be .*{allowed}"):
        pack(folder, **{setting: value})
    assert made(tmp_path) == []


def test_a_cache_inside_the_folder_is_refused(folder, pack):
    with pytest.raises(ValueError, match="cache=.* must be outside the folder"):
        pack(folder, cache=folder / "cache")
    assert not (folder / "cache").exists()
