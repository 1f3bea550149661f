"""Reading the data that `fit` will get, without advancing the dataset's state, and skipping elements."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.words import first_sentence

_RESOURCES = {
    "ShuffleDatasetV3": (4, "AnonymousSeedGenerator", "reshuffle_each_iteration"),
    "ShuffleAndRepeatDatasetV2": (5, "AnonymousSeedGenerator", "reshuffle_each_iteration"),
    "RandomDatasetV2": (2, "AnonymousSeedGenerator", "rerandomize_each_iteration"),
    "CacheDatasetV2": (2, "AnonymousMemoryCache", None),
}
"""Stateful operations of tf.data: the input of their state, what creates it, and whether each pass draws a new seed."""

_SEEDS = {"ShuffleDatasetV3": 2, "ShuffleAndRepeatDatasetV2": 2, "RandomDataset": 0, "RandomDatasetV2": 0}
"""Operations of tf.data with a random order: the input where their two seeds begin."""

_NUMBERED = ("RangeDataset", "TensorSliceDataset")
_ONE_TO_ONE = ("MapDataset", "ParallelMapDatasetV2", "PrefetchDataset", "OptionsDataset")
_DRAWS = ("Random", "Truncated", "ParameterizedTruncated", "Multinomial", "Stateful", "Rng", "NonDeterministic")
"""Prefixes of operations that draw from a sequence of random numbers, so that skipping one changes the next."""
_CHANGES = (*_DRAWS, "PyFunc", "EagerPyFunc", "ReadVariable", "Assign")
"""Those, and operations whose output may differ for the same input."""
_TRAITS = WeakKeyDictionary()
"""By dataset, while it exists."""


def tensors_of(batch):
    """Return the tensors of a batch, or their specs, without None and variants."""
    parts = tf.nest.flatten(batch, expand_composites=True)
    return [part for part in parts if part is not None and part.dtype != tf.variant]


def recording_first(dataset, count, note):
    """Return the dataset, calling ``note(number, *arrays)`` with the arrays of each of the first ``count`` batches."""

    def called(number, *parts):
        note(int(number), *parts)
        return number

    def note_the_first(number, batch):
        tensors = tensors_of(batch)
        noted = tf.cond(number < count, lambda: tf.numpy_function(called, [number, *tensors], tf.int64), lambda: number)
        with tf.control_dependencies([noted]):
            return tf.nest.map_structure(
                lambda part: part if part is None else tf.identity(part), batch, expand_composites=True
            )

    return dataset.enumerate().map(note_the_first)


def read_apart(dataset):
    """Return a `tf.data.Dataset` with the elements of this one's first pass, without advancing its shuffling.

    Each pass over a shuffled dataset takes the next seed from state that all its iterators share: reading batches
    changes the order that `fit` sees. So its graph is copied, with separate state, which begins at the first pass even
    if this dataset was iterated before. Datasets that cannot be serialized, such as those with arrays of 2 GiB or more,
    raise tf.errors.OpError or ValueError.
    """
    graph = graph_of_dataset(dataset)
    nodes = {node.name: node for node in graph.node}
    for node in list(graph.node):
        if node.op in _RESOURCES:
            place, operation, next_seed = _RESOURCES[node.op]
            memory = nodes[node.input[place].partition(":")[0]]
            memory.op = operation
            memory.ClearField("attr")
            if next_seed:
                again = graph.node.add(name=f"{memory.name}/again", op="Const")
                again.attr["dtype"].type = tf.bool.as_datatype_enum
                again.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(node.attr[next_seed].b))
                seeds = _SEEDS[node.op]
                memory.input.extend([*node.input[seeds : seeds + 2], again.name])
    return _dataset_of(graph, dataset)


class Traits(NamedTuple):
    """Properties of a dataset's graph. If it cannot be serialized, ``unknown`` is why, and the rest may be None."""

    shuffles: list | None = None
    """The sources of randomness of each `shuffle` and `sample_from_datasets`: the seeds, and the state that advances
    them. Seeds are (0, 0) if nondeterministic, None if they are not constants; the state is None if each pass has the
    same order. Shuffling within a function of the dataset is not detected."""
    seeds: set | None = None
    """The seeds of each, and of datasets of random numbers, also within functions: pairs, the second perhaps None."""
    keeps_order: bool | None = None
    """Whether parallel operations yield elements in order: not with ``deterministic=False``."""
    calls_python: bool | None = None
    """Whether it calls Python, as in a generator or a `map`."""
    changes_examples: bool | None = None
    """Whether a `map` calls Python, draws random numbers or reads variables: another pass may then differ."""
    unknown: str = ""


def traits_of(dataset):
    """Return the `Traits` of a dataset; its graph is serialized once."""
    if dataset not in _TRAITS:
        _TRAITS[dataset] = _examined(dataset)
    return _TRAITS[dataset]


def _examined(dataset):
    is_in_order = dataset.options().deterministic is not False
    try:
        graph = graph_of_dataset(dataset)
    except (tf.errors.OpError, ValueError) as error:
        why = first_sentence(error).partition(" [Op:")[0].rstrip(".")
        return Traits(keeps_order=None if is_in_order else False, unknown=why)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return Traits(
        shuffles=_shuffles_in(graph),
        seeds=_seeds_in(graph),
        keeps_order=is_in_order and all(node.attr["deterministic"].s != b"false" for node in nodes),
        calls_python=any(node.op in ("PyFunc", "EagerPyFunc") for node in nodes),
        changes_examples=_changes_examples(graph, nodes),
    )


def _shuffles_in(graph):
    nodes = {node.name: node for node in graph.node}
    found = []
    shuffling = [node for node in graph.node if "Shuffle" in node.op and node.op in _SEEDS]
    for node in [*shuffling, *_sampling(nodes)]:
        seeds = _seeds_of(node, nodes)
        moves_on = any(node.attr[f"{name}_each_iteration"].b for name in ("reshuffle", "rerandomize"))
        state = nodes[node.input[-1].partition(":")[0]].attr["value"].tensor
        found.append((None if None in seeds else seeds, state.SerializeToString() if moves_on else None))
    return found


def _seeds_in(graph):
    found = set()
    for each in [graph.node, *(function.node_def for function in graph.library.function)]:
        nodes = {node.name: node for node in each}
        found |= {_seeds_of(node, nodes) for node in each if node.op in _SEEDS}
    return {(first, second) for first, second in found if first is not None}


def _seeds_of(node, nodes):
    """Return the two seeds of a node, each None if it is not a constant."""
    names = [name.partition(":")[0] for name in node.input[_SEEDS[node.op] :][:2]]
    inputs = [nodes[name] if name in nodes and nodes[name].op == "Const" else None for name in names]
    return tuple(None if one is None else int(tf.make_ndarray(one.attr["value"].tensor)) for one in inputs)


def _changes_examples(graph, nodes):
    functions = {function.signature.name: function for function in graph.library.function}
    mapped = [node.attr["f"].func.name for node in nodes if "Map" in node.op and not node.op.startswith("FlatMap")]
    seen = set()
    while mapped:
        name = mapped.pop()
        if name in functions and name not in seen:
            seen.add(name)
            for node in functions[name].node_def:
                if node.op.startswith(_CHANGES):
                    return True
                mapped += [value.func.name for value in node.attr.values() if value.func.name]
    return False


def global_seed():
    """Return the seed of `tf.random.set_seed`, as datasets use it; without one, TensorFlow's default."""
    seed, _ = tf.compat.v1.random.get_seed(1)
    return int(seed)


def _sampling(nodes):
    """Return the datasets of random numbers with which `sample_from_datasets` chooses."""
    found = []
    for node in nodes.values():
        if node.op != "DirectedInterleaveDataset":
            continue
        while node.op not in _SEEDS and node.input:
            node = nodes[node.input[0].partition(":")[0]]
        if node.op in _SEEDS and node not in found:
            found.append(node)
    return found


def graph_of_dataset(dataset):
    """Return a dataset as a GraphDef, before tf.data's rewrites; raise as `read_apart` does."""
    variant = tf.data.experimental.to_variant(dataset)
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)  # 1: ignore external state
    return tf.compat.v1.GraphDef.FromString(text.numpy())


def _dataset_of(graph, original):
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    made = tf.data.experimental.from_variant(variant, original.element_spec)
    made.original = original  # a `Pipeline` removes its private cache file with its dataset
    return made


def skipping_numbers(dataset, count, may_try=False):
    """Return a dataset without its first elements if `map` makes each from its index; otherwise None.

    In ``Dataset.range(steps).map(read)``, the indices are skipped, without computing the elements. ``may_try``: make
    one element twice if Python makes it, to see that it depends on its index alone.
    """
    try:
        return _skipping_numbers(dataset, count, may_try)
    except (tf.errors.OpError, ValueError):
        return None


def _skipping_numbers(dataset, count, may_try):
    """Return the same by skipping the indices in its graph; raise ValueError if it does not begin with indices."""
    graph = graph_of_dataset(dataset)
    nodes = {node.name: node for node in graph.node}
    functions = graph.library.function
    if any(node.op.startswith(_DRAWS) for function in functions for node in function.node_def):
        raise ValueError("random numbers are drawn on the way")
    if any(node.op == "VarHandleOp" for node in graph.node):
        raise ValueError("it reads a variable, of which a graph has a copy")
    (last,) = (node for node in graph.node if node.op == "_Retval")
    reader = last
    source = nodes[reader.input[0]]
    while source.op in _ONE_TO_ONE:
        reader, source = source, nodes[source.input[0]]
    if source.op not in _NUMBERED or reader is last:
        raise ValueError("it does not begin with numbers")
    number = graph.node.add(name="skipped", op="Const")
    number.attr["dtype"].type = tf.int64.as_datatype_enum
    number.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(count, tf.int64))
    skip = graph.node.add(name="skip", op="SkipDataset")
    skip.input.extend([source.name, "skipped"])
    types = "Toutput_types" if source.op == "TensorSliceDataset" else "output_types"
    skip.attr["output_types"].CopyFrom(source.attr[types])
    skip.attr["output_shapes"].CopyFrom(source.attr["output_shapes"])
    reader.input[0] = "skip"
    left = _dataset_of(graph, dataset)
    if any("PyFunc" in node.op for function in functions for node in function.node_def):
        if not may_try:
            raise ValueError("a Python function may read a stream")
        one, other = ([tf.io.serialize_tensor(part) for part in tensors_of(list(left.take(1)))] for _ in range(2))
        if one != other:
            raise ValueError("a Python function returns another element for the same number")
    return left
