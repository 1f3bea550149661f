"""Photo crops: what they hold, that they repeat, that damage heals, that bad settings are refused."""

import errno
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from bigtrain_nb.data import cache as storage
from bigtrain_nb.data import images as datasets
from bigtrain_nb.data.images import photo_crops

SMALL = {"count": 20, "test_count": 10, "size": 32, "shards": 3}


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    """Crops for tests that only read."""
    return photo_crops(**SMALL, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def fresh(tmp_path):
    """Crops for tests that damage them, in a cache of their own."""
    return photo_crops(**SMALL, cache=tmp_path)


def again(data):
    return photo_crops(**SMALL, cache=data.root.parent)


def records(shards):
    """Return [(JPEG bytes, label)] as TensorFlow reads them."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    parsed = (tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(list(shards)))
    return [(example["image"].numpy(), int(example["label"])) for example in parsed]


def pictures(files):
    return [Path(file).read_bytes() for file in files]


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("split", ["train", "test"])
def test_records_and_files_are_the_same_labelled_images(crops, split):
    shards, files, count = {
        "train": (crops.shards, crops.files, crops.count),
        "test": (crops.test_shards, crops.test_files, crops.test_count),
    }[split]
    assert len(files) == count == {"train": 20, "test": 10}[split] and len(shards) == 3
    read = records(shards)
    assert [jpeg for jpeg, _ in read] == pictures(files)
    assert [crops.classes[label] for _, label in read] == [Path(file).parent.name for file in files]
    for jpeg, _ in read:
        assert tf.io.decode_jpeg(jpeg).shape == (32, 32, 3)


def test_classes_are_balanced_and_mixed(crops):
    assert crops.classes == tuple(sorted(datasets.PHOTOS)) and len(crops.classes) == 8
    numbers = Counter(crops.labels().tolist())
    assert set(numbers) == set(range(8)) and max(numbers.values()) - min(numbers.values()) <= 1
    for shard in crops.shards:
        assert len({label for _, label in records([shard])}) > 2


def test_shards_hold_nearly_equal_numbers(crops):
    assert [len(records([shard])) for shard in crops.shards] == [6, 7, 7]
    assert crops.verify() == 30


def test_labels_are_those_of_the_records(crops):
    assert crops.labels().dtype == np.int64
    assert crops.labels().tolist() == [label for _, label in records(crops.shards)]


@pytest.mark.parametrize("width, height", [(451, 300), (1411, 1411), (512, 512), (40, 900)])
def test_train_and_test_boxes_share_no_column(width, height):
    rng = np.random.default_rng(1)
    boxes = {split: [datasets.crop_box(width, height, split, rng) for _ in range(500)] for split in ("train", "test")}
    for left, top, right, bottom in boxes["train"] + boxes["test"]:
        assert 0 <= left < right <= width and 0 <= top < bottom <= height and right - left == bottom - top
    assert max(right for _, _, right, _ in boxes["train"]) <= min(left for left, _, _, _ in boxes["test"])


def test_no_train_image_depends_on_a_test_pixel_nor_the_reverse(crops, tmp_path, monkeypatch):
    photo = datasets._photo

    def half_black(file, black):
        image = photo(file)
        cut = int(image.width * datasets.TRAIN_COLUMNS)
        image.paste((0, 0, 0), (cut, 0, image.width, image.height) if black == "test" else (0, 0, cut, image.height))
        return image

    for black, files, kept in (("test", "files", "test_files"), ("train", "test_files", "files")):
        monkeypatch.setattr(datasets, "_photo", lambda file, black=black: half_black(file, black))
        data = photo_crops(**SMALL, cache=tmp_path / black)
        assert pictures(getattr(data, files)) == pictures(getattr(crops, files))
        assert max(np.asarray(Image.open(file)).max() for file in getattr(data, kept)) == 0


def test_the_same_arguments_give_the_same_bytes(crops, fresh):
    assert contents(fresh.root) == contents(crops.root)


@pytest.mark.parametrize("setting, value", [("seed", 1), ("size", 40), ("quality", 50), ("shards", 2)])
def test_other_arguments_give_other_folders(fresh, setting, value):
    other = photo_crops(**{**SMALL, setting: value}, cache=fresh.root.parent)
    assert other.root != fresh.root
    assert contents(other.root) != contents(fresh.root) and fresh.verify() == 30


def test_quality_and_size_reach_the_images(fresh):
    low = photo_crops(**{**SMALL, "quality": 10}, cache=fresh.root.parent)
    assert sum(map(len, contents(low.root / "train").values())) < sum(map(len, contents(fresh.root / "train").values()))
    assert Image.open(photo_crops(**{**SMALL, "size": 50}, cache=fresh.root.parent).files[0]).size == (50, 50)


def test_a_second_call_rewrites_nothing(fresh):
    before = {path: path.stat().st_mtime_ns for path in fresh.root.rglob("*")}
    assert again(fresh) == fresh
    assert before == {path: path.stat().st_mtime_ns for path in fresh.root.rglob("*")}


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("which", ["shards", "files"])
def test_damage_is_healed_by_the_next_call(fresh, damage, which):
    good = contents(fresh.root)
    damage(Path(getattr(fresh, which)[1]))
    assert again(fresh) == fresh
    assert contents(fresh.root) == good


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip, empty, Path.unlink])
def test_a_damaged_shard_is_named(fresh, damage):
    shard = Path(fresh.shards[1])
    damage(shard)
    with pytest.raises(ValueError, match=f"(?s){shard.name}.*delete {fresh.root}") as caught:
        fresh.verify()
    assert str(caught.value).count(".tfrecord") == 1


def test_two_processes_at_once_both_end_well(crops, tmp_path):
    call = f"photo_crops(**{SMALL}, cache={str(tmp_path)!r})"
    code = f"from bigtrain_nb.data.images import photo_crops; print({call}.verify())"
    makers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [maker.communicate(timeout=120)[0].strip() for maker in makers] == ["30", "30"]
    assert [path.name for path in tmp_path.iterdir()] == [crops.root.name]
    assert contents(tmp_path / crops.root.name) == contents(crops.root)


class FullShards:
    """A TFRecordWriter whose disk is full, as TensorFlow reports it."""

    def __init__(self, path):
        Path(path).touch()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def write(self, record):
        raise tf.errors.ResourceExhaustedError(None, None, "shard; No space left on device")


def fail_to_write(path, content):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "where, name, full", [(Path, "write_bytes", fail_to_write), (tf.io, "TFRecordWriter", FullShards)]
)
def test_a_full_disk_is_named_and_nothing_stays(tmp_path, monkeypatch, where, name, full):
    monkeypatch.setattr(where, name, full)
    with pytest.raises(OSError, match=rf"not enough space: about .* MB are needed.*{tmp_path}"):
        photo_crops(**SMALL, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "setting, value, allowed",
    [
        ("count", 0, "at least 1"),
        ("count", 2.5, "a whole number"),
        ("count", True, "a whole number"),
        ("test_count", -1, "at least 1"),
        ("size", 7, "at least 8"),
        ("size", "big", "a whole number"),
        ("quality", 0, "at least 1 and at most 95"),
        ("quality", 96, "at least 1 and at most 95"),
        ("shards", 0, "at least 1"),
        ("shards", 21, "at most 20, the count of images"),
        ("seed", -1, "at least 0"),
        ("seed", None, "a whole number"),
    ],
)
def test_bad_settings_are_refused(tmp_path, setting, value, allowed):
    with pytest.raises(ValueError, match=f"{setting}={value!r} must be .*{allowed}"):
        photo_crops(**{**SMALL, setting: value}, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_more_shards_than_test_images(tmp_path):
    data = photo_crops(count=5, test_count=2, size=16, shards=4, cache=tmp_path)
    assert (len(data.shards), len(data.test_shards)) == (4, 2) and data.verify() == 7


def test_the_cache_variable_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("BIGTRAIN_NB_CACHE", str(tmp_path / "deep" / "cache"))
    assert photo_crops(2, 1, size=8, shards=1).root.parent == tmp_path / "deep" / "cache"


def expected(files, size):
    images = [tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(file), channels=3), [size, size]) for file in files]
    return np.stack([np.rint(image).astype(np.uint8) for image in images])


def test_numpy_is_the_decoded_train_split(crops):
    folder = crops.as_numpy(24)
    images = np.load(folder / "images.npy", mmap_mode="r")
    assert images.dtype == np.uint8 and images.shape == (20, 24, 24, 3)
    np.testing.assert_array_equal(images, expected(crops.files, 24))
    np.testing.assert_array_equal(np.load(folder / "labels.npy"), crops.labels())


def test_hdf5_is_the_decoded_train_split_in_chunks_of_whole_examples(crops):
    with h5py.File(crops.as_hdf5(24)) as file:
        np.testing.assert_array_equal(file["images"], expected(crops.files, 24))
        np.testing.assert_array_equal(file["labels"], crops.labels())
        assert file["images"].chunks == (20, 24, 24, 3)
    with h5py.File(crops.as_hdf5(200)) as file:
        assert file["images"].chunks == (8, 200, 200, 3)


@pytest.mark.parametrize("kind, file", [("as_numpy", "images.npy"), ("as_hdf5", "train.h5")])
def test_arrays_are_made_once_and_healed(fresh, kind, file):
    path = getattr(fresh, kind)(16)
    made = path / file if path.is_dir() else path
    before = made.stat().st_mtime_ns
    assert getattr(fresh, kind)(16) == path and made.stat().st_mtime_ns == before
    cut(made)
    size = made.stat().st_size
    getattr(fresh, kind)(16)
    assert made.stat().st_size == size + 10
    with pytest.raises(ValueError, match="image_size=0 must be a whole number of at least 8"):
        getattr(fresh, kind)(0)


def test_arrays_on_a_full_disk_leave_nothing(fresh, monkeypatch):
    usage = storage.shutil.disk_usage(fresh.root)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    for make in (fresh.as_numpy, fresh.as_hdf5):
        with pytest.raises(OSError, match="not enough space"):
            make(16)
    assert list(fresh.root.parent.iterdir()) == [fresh.root]


def test_missing_photographs_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(datasets.PHOTOS, "cat", "gone.png")
    with pytest.raises(FileNotFoundError, match=r"gone\.png: scikit-image lacks its photographs"):
        photo_crops(**SMALL, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_text_form_holds_no_paths(crops):
    assert "count=20" in repr(crops) and str(crops.root) not in repr(crops)
    assert replace(crops, skipped=("a.jpg",)) != crops


def test_importing_does_not_load_tensorflow():
    code = "import sys, bigtrain_nb.data.images, bigtrain_nb.data.text; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
