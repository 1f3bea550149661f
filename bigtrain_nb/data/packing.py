"""Images as a folder of JPEG files and, example for example, as TFRecord shards."""

from bigtrain_nb.common.progress import shown


def pack(folder, split, classes, labels, images, shards):
    """Write each JPEG as ``<split>/<class>/<index>.jpg`` and all of them, in the same order, into TFRecord shards.

    ``labels`` are indices into ``classes``; ``images`` yields the JPEG bytes, one for each label. Every record is a
    tf.train.Example with the features "image" (JPEG bytes) and "label" (int64). Returns the names of all files
    relative to ``folder``: {"shards": [...], "files": [...]}.
    """
    from bigtrain_nb.common.quiet import tf

    names = {"shards": [f"shards/{split}-{i:05d}-of-{shards:05d}.tfrecord" for i in range(shards)]}
    names["files"] = [f"{split}/{classes[label]}/{i:06d}.jpg" for i, label in enumerate(labels)]
    (folder / "shards").mkdir(exist_ok=True)
    for label in sorted(set(labels)):
        (folder / split / classes[label]).mkdir(parents=True)
    examples = zip(names["files"], labels, images, strict=True)
    examples = shown(examples, f"writing {split} images", len(labels))
    for i, shard in enumerate(names["shards"]):
        with tf.io.TFRecordWriter(str(folder / shard)) as writer:
            for _ in range(i * len(labels) // shards, (i + 1) * len(labels) // shards):
                file, label, jpeg = next(examples)
                (folder / file).write_bytes(jpeg)
                writer.write(_record(tf, jpeg, label))
    examples.close()
    return names


def _record(tf, jpeg, label):
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)
