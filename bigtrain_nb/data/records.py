"""Write labeled JPEG images as files and TFRecord shards, and read them in a pipeline."""

import os
from functools import partial

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.data.cache import progress

RATIOS = (1, 2, 4, 8)
"""Factors by which a JPEG decoder can shrink each side of an image while decoding."""


def pack(folder, split, classes, labels, images, shards):
    """Write each JPEG as ``<split>/<class>/<index>.jpg`` and all of them, in the same order, into TFRecord shards.

    There are ``shards`` of them, at most one per image. ``labels`` are indices into ``classes``; ``images`` yields the
    JPEG bytes for each label. Every record is a tf.train.Example with the features "image" (JPEG bytes) and "label"
    (int64). Raises OSError if writing fails, for example on a full disk.
    """
    (folder / "shards").mkdir(exist_ok=True)
    for label in set(labels):
        (folder / split / classes[label]).mkdir(parents=True)
    count = len(labels)
    shards = min(shards, count)
    images = iter(progress(images, f"writing {split} images", count))
    for shard in range(shards):
        path = folder / "shards" / f"{split}-{shard:05d}-of-{shards:05d}.tfrecord"
        try:
            with tf.io.TFRecordWriter(str(path)) as writer:
                for index in range(shard * count // shards, (shard + 1) * count // shards):
                    jpeg, label = next(images), labels[index]
                    (folder / split / classes[label] / f"{index:06d}.jpg").write_bytes(jpeg)
                    writer.write(_record(jpeg, label))
        except tf.errors.OpError as error:
            raise OSError(f"{path} cannot be written: {error}") from error


def _record(jpeg, label):
    image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg]))
    label = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    features = tf.train.Features(feature={"image": image, "label": label})
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def unpack(record):
    """Parse one `tf.train.Example` of our shards into (JPEG bytes [], int64 label [])."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, features)
    return example["image"], example["label"]


def class_of(path, classes):
    """Return the int64 label of a file, whose folder is named after its class."""
    folder = tf.strings.split(path, os.sep)[-2]
    return tf.argmax(tf.equal(folder, tf.constant(classes)))


def decode_image(jpeg, size, *, exact=False, numbers=None):
    """Decode one JPEG and resize it (bilinear) to uint8 [size, size, 3].

    Unless ``exact``, the decoder shrinks by the largest of `RATIOS` that leaves at least ``size`` pixels. With three
    random ``numbers`` (int64 [3]), only a random part is decoded, and mirrored if the last number is odd.
    """
    shape = tf.io.extract_jpeg_shape(jpeg)
    window = tf.concat([[0, 0], shape[:2]], 0)
    if numbers is not None:
        window = _random_window(shape, numbers[:2])

    def decode(ratio):
        return tf.io.decode_and_crop_jpeg(jpeg, window // ratio, channels=3, ratio=ratio)

    if exact:
        image = decode(1)
    else:
        covers = tf.reduce_min(window[2:]) // size
        choice = tf.reduce_sum(tf.cast(covers >= RATIOS[1:], tf.int32))
        image = tf.switch_case(choice, [partial(decode, ratio) for ratio in RATIOS])
    fits = tf.reduce_all(tf.shape(image)[:2] == size)
    image = tf.cond(fits, lambda: image, lambda: _resize(image, size))
    if numbers is not None:
        image = tf.cond(numbers[2] % 2 == 0, lambda: image, lambda: tf.reverse(image, [1]))
    return tf.ensure_shape(image, [size, size, 3])


def _resize(image, size):
    resized = tf.image.resize(tf.cast(image, tf.float32), [size, size])
    return tf.cast(tf.round(resized), tf.uint8)


def _random_window(shape, seed):
    """Return top, left, height and width of a part of 8 to 100 % of the area, with an aspect ratio of 3:4 to 4:3."""
    whole = tf.zeros([1, 0, 4])
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape, whole, seed, min_object_covered=0.08, use_image_if_no_bounding_boxes=True
    )
    return tf.concat([begin[:2], extent[:2]], 0)


def scale_pixels(images, labels):
    """Scale uint8 pixels, of one image or a batch, to float32 in -1..1."""
    quantized = tf.bitcast(images, tf.quint8)  # x / 127.5 - 1 in one pass over the pixels instead of three
    return tf.quantization.dequantize(quantized, -1.0, 1.0, mode="MIN_COMBINED"), labels
