"""Labelled JPEG images as files and as TFRecord shards: written to disk, and read back in a pipeline."""

import os

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.data.cache import progress


def pack(folder, split, classes, labels, images, shards):
    """Write each JPEG as ``<split>/<class>/<index>.jpg`` and all of them, in the same order, into TFRecord shards.

    There are ``shards`` of them, but no more than images. ``labels`` are indices into ``classes``; ``images`` yields
    the JPEG bytes, one for each label. Every record is a tf.train.Example with the features "image" (JPEG bytes) and
    "label" (int64).
    """
    (folder / "shards").mkdir(exist_ok=True)
    for label in set(labels):
        (folder / split / classes[label]).mkdir(parents=True)
    count = len(labels)
    shards = min(shards, count)
    images = iter(progress(images, f"writing {split} images", count))
    for shard in range(shards):
        path = folder / "shards" / f"{split}-{shard:05d}-of-{shards:05d}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for index in range(shard * count // shards, (shard + 1) * count // shards):
                jpeg, label = next(images), labels[index]
                (folder / split / classes[label] / f"{index:06d}.jpg").write_bytes(jpeg)
                writer.write(_record(jpeg, label))


def _record(jpeg, label):
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def unpack(record):
    """Parse one `tf.train.Example` of our shards into (JPEG bytes [], int64 label [])."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, features)
    return example["image"], example["label"]


def class_of(path, classes):
    """Return the int64 label of a file in a folder named after its class."""
    folder = tf.strings.split(path, os.sep)[-2]
    return tf.argmax(tf.equal(folder, tf.constant(classes)))


def decode_image(jpeg, size):
    """Decode one JPEG and resize it (bilinear) to uint8 [size, size, 3]."""
    image = tf.image.resize(tf.io.decode_jpeg(jpeg, channels=3), [size, size])
    return tf.cast(tf.round(image), tf.uint8)


def scale_pixels(images, labels):
    """Scale uint8 pixels to float32 in -1..1; takes one image or a batch of them."""
    return tf.cast(images, tf.float32) / 127.5 - 1.0, labels
