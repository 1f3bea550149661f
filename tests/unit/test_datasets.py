"""Photo crops: contents, reproducibility, refusal of bad settings. Notebook 01 compares their copies as arrays."""

import resource
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bigtrain_nb import tf
from bigtrain_nb.data import images as datasets
from bigtrain_nb.data.images import photo_crops
from bigtrain_nb.data.records import unpack

pytest.importorskip("skimage")
SMALL = {"count": 20, "test_count": 2, "size": 32, "shards": 3}


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    """Crops for tests that only read them."""
    return photo_crops(**SMALL, cache=tmp_path_factory.mktemp("cache"))


def records(shards):
    """Return [(JPEG bytes, label)] as read by TensorFlow."""
    examples = tf.data.TFRecordDataset(list(shards)).map(unpack)
    return [(jpeg.numpy(), int(label)) for jpeg, label in examples]


def pictures(files):
    return [Path(file).read_bytes() for file in files]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_records_and_files_are_the_same_labelled_images(crops):
    splits = (crops.shards, crops.files, crops.count), (crops.test_shards, crops.test_files, crops.test_count)
    for (shards, files, count), wanted in zip(splits, (20, 2), strict=True):
        assert len(files) == count == wanted and len(shards) == min(3, wanted)
        read = records(shards)
        assert [jpeg for jpeg, _ in read] == pictures(files)
        assert [crops.classes[label] for _, label in read] == [Path(file).parent.name for file in files]
        for jpeg, _ in read:
            assert tf.io.decode_jpeg(jpeg).shape == (32, 32, 3)


@pytest.mark.parametrize("black, same", [("test", "files"), ("train", "test_files")])
def test_no_train_image_depends_on_a_test_pixel_nor_the_reverse(crops, tmp_path, monkeypatch, black, same):
    photo = datasets._photo

    def half_black(file):
        image = photo(file)
        cut = int(image.width * datasets.TRAIN_COLUMNS)
        image.paste((0, 0, 0), (cut, 0, image.width, image.height) if black == "test" else (0, 0, cut, image.height))
        return image

    monkeypatch.setattr(datasets, "_photo", half_black)
    data = photo_crops(**SMALL, cache=tmp_path)
    assert pictures(getattr(data, same)) == pictures(getattr(crops, same))
    others = data.test_files if black == "test" else data.files
    assert max(np.asarray(Image.open(file)).max() for file in others) == 0


def test_the_same_arguments_give_the_same_bytes_and_others_another_folder(crops, tmp_path):
    assert contents(photo_crops(**SMALL, cache=tmp_path).root) == contents(crops.root)
    for change in ({"size": 40}, {"shards": 2}):
        other = photo_crops(**{**SMALL, **change}, cache=tmp_path)
        assert contents(other.root) != contents(crops.root)
    assert len(list(tmp_path.iterdir())) == 3
    assert contents(tmp_path / crops.root.name) == contents(crops.root)


def test_a_disk_that_is_full_is_an_oserror_that_names_the_shard(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))  # enough for an image, not for a shard
    try:
        with pytest.raises(OSError, match=r"train-00000-of-00001.tfrecord cannot be written: "):
            photo_crops(**SMALL | {"shards": 1}, cache=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
