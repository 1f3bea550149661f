"""The time of a plan is a bound: no step is faster. How near it is, benchmarks/budget.py measures.

Here it must only be no less than a hundredth of the step, which shares the machine with other tests.
"""

import time
from functools import partial
from statistics import median
from types import SimpleNamespace

import pytest
from tiers import in_two_tiers

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.plan import timed_alone
from bigtrain_nb.plan.bound import least_seconds
from bigtrain_nb.plan.graph import Graph
from bigtrain_nb.plan.operations import flops, useful_share
from bigtrain_nb.plan.plans import plan_step
from bigtrain_nb.plan.step import Step
from bigtrain_nb.plan.this_machine import this_machine
from bigtrain_nb.plan.timed_alone import CONVOLUTIONS, SLOW, is_timed_alone, seconds_alone

layers = keras.layers
NOISE = 2
"""What is measured here may be that of a busy moment, and the step's that of a calm one."""
FAR_BELOW = 50
"""These steps are small: on a calm machine they take up to five times their bound, on a busy one many times that."""


def network(*stack, shape, dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *stack, layers.Dense(10)])


def volumes():
    convolutions = [layers.Conv3D(16, 3, padding="same", activation="relu") for _ in range(2)]
    return network(*convolutions, layers.GlobalAveragePooling3D(), shape=(8, 16, 16, 16))


def text():
    words, convolution = layers.Embedding(1000, 64), layers.Conv1D(128, 5, activation="relu")
    return network(words, convolution, layers.GlobalMaxPooling1D(), shape=(128,), dtype="int32")


def separable():
    block = [layers.SeparableConv2D(64, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()]
    return network(*block, layers.GlobalAveragePooling2D(), shape=(32, 32, 16))


NETWORKS = {
    "volumes": (volumes, 16),
    "text": (text, 64),
    "recurrent": (lambda: network(layers.GRU(64), shape=(20, 16)), 128),
    "separable": (separable, 32),
    "dense": (lambda: network(layers.Dense(1024, "relu"), layers.Dense(1024, "relu"), shape=(1024,)), 64),
    "attention": (partial(bt.gpt, layers=1), 16),
}


OTHER_KINDS = pytest.mark.more("every kind of layer: one with convolutions, a loop and attention are in the first tier")


@pytest.mark.parametrize("name", in_two_tiers(NETWORKS, ["text", "recurrent", "attention"], OTHER_KINDS))
def test_no_step_is_faster(name):
    build, batch = NETWORKS[name]
    model = build()
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = tf.ones((batch, *model.input_shape[1:]), model.inputs[0].dtype)
    y = tf.zeros((batch, *model.output_shape[1:-1]), "int32")
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    model.make_train_function()
    took = []
    for _ in range(6):
        began = time.perf_counter()
        float(model.train_function(batches)["loss"])
        took.append(time.perf_counter() - began)
    plan = plan_step(model, batch, on="here")
    assert min(took[1:]) / FAR_BELOW < plan.seconds < NOISE * median(took[1:])
    assert plan.binding == "computing" and "no step is faster" in repr(plan)


class Machine(SimpleNamespace):
    """One FLOP and one byte a second."""

    times_alone = False

    def flops(self, policy):
        return 1.0

    def moving(self, size):
        return size


def traced(function, *shapes):
    graph = tf.function(function, autograph=False).get_concrete_function(*[tf.TensorSpec(one) for one in shapes]).graph
    return Graph(graph, graph.outputs, first_backward=len(graph.get_operations()))


def test_an_operation_takes_its_flops_its_bytes_or_its_start():
    product = traced(lambda a, b: tf.matmul(a, b), (2, 30), (30, 4))
    plain = Machine(start=0.0, fuses=False)
    assert least_seconds(product, plain) == 4 * (60 + 120 + 8)  # moved, more than 2 x 30 x 8 FLOPs
    wide = traced(lambda a, b: tf.matmul(a, b), (40, 40), (40, 40))
    assert least_seconds(wide, plain) == 2 * 40**3
    assert least_seconds(product, Machine(start=1e6, fuses=False)) == 1e6


def test_what_tensorflow_or_xla_fuses_moves_nothing():
    def layer(a, b, c):
        return tf.tanh(tf.nn.relu(tf.nn.bias_add(tf.matmul(a, b), c)) * tf.ones([40, 1]))

    graph = traced(layer, (40, 40), (40, 40), (40,))
    alone = traced(lambda a: tf.reduce_sum(a), (40,))
    for fuses in (False, True):
        assert least_seconds(graph, Machine(start=0.0, fuses=fuses)) == 2 * 40**3
    graph = traced(lambda a: tf.transpose(a), (40, 40))
    assert least_seconds(graph, Machine(start=0.0, fuses=False)) == 2 * 4 * 40**2 + 8  # and the order of axes
    assert least_seconds(graph, Machine(start=0.0, fuses=True)) == 0
    assert least_seconds(alone, Machine(start=1.0, fuses=False)) == 0  # a single number: worked out once for several


def test_an_update_reads_and_writes_each_variable_where_all_else_is_fused():
    step = Step(network(layers.Dense(8, use_bias=False), shape=(8,)), 4, "adamw")
    numbers = 8 * 8 + 8 * 10 + 10
    assert least_seconds(step.update, Machine(start=0.0, fuses=True)) == pytest.approx(3 * 2 * 4 * numbers, abs=64)


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_zeros_of_a_padding_need_no_flops(strides, padding):
    """A convolution of ones by a kernel of ones counts the places that are no padding."""
    image, kernel = tf.ones([1, 5, 4, 1]), tf.ones([3, 3, 1, 1])
    counted = tf.nn.conv2d(image, kernel, strides, padding.upper())

    def gradients(image, kernel):
        with tf.GradientTape() as tape:
            tape.watch([image, kernel])
            total = tf.reduce_sum(tf.nn.conv2d(image, kernel, strides, padding.upper()) ** 2)
        return tape.gradient(total, [image, kernel])

    nodes = [op.node for op in traced(gradients, image.shape, kernel.shape).nodes if op.flops]
    assert len(nodes) == 3
    for node in nodes:
        assert useful_share(node) * flops(node) == pytest.approx(2 * float(tf.reduce_sum(counted)))


def test_what_a_loop_does_takes_its_time_each_time():
    short, long = (network(layers.LSTM(64), shape=(length, 16)) for length in (10, 200))
    short, long = (least_seconds(Step(model, 64).gradients, Machine(start=0.0, fuses=False)) for model in (short, long))
    assert 15 < long / short < 25


def test_this_machine_moves_no_less_from_caches_and_is_measured_once():
    machine = this_machine()
    assert machine is this_machine()
    sizes = [2**n for n in range(10, 34, 2)]
    rates = [size / machine.moving(size) for size in sizes]
    assert rates == sorted(rates, reverse=True) and rates[-1] > 1e8
    assert 0 < machine.start < 1e-3
    assert machine.flops("mixed_bfloat16") >= machine.flops("float32") > 1e8


def test_what_an_accelerator_holds_in_its_cache_is_not_read_from_memory():
    device = bt.ACCELERATORS["H100"]
    assert device.moving(1e6) == 0 and device.moving(4e9) == pytest.approx(3.9e9 / 3350e9)


def gradients_of(layer, shape):
    """Return the nodes of the FLOPs of a layer on images [*shape], forward and backward."""
    layer.build(shape)

    def step(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            total = tf.reduce_sum(layer(images) ** 2)
        return tape.gradient(total, [images, layer.trainable_variables[0]])

    return [op.node for op in traced(step, shape).nodes if op.flops]


CONVOLVED = {
    "2-D": (lambda: layers.Conv2D(8, 3, strides=2, padding="same"), (64, 20, 20, 3)),
    "3-D": (lambda: layers.Conv3D(8, 3), (32, 8, 10, 12, 4)),
    "depthwise": (lambda: layers.DepthwiseConv2D(3), (64, 20, 20, 32)),
}


def test_the_timed_convolutions_are_those_of_keras():
    found = {node.type for build, shape in CONVOLVED.values() for node in gradients_of(build(), shape)}
    assert found == CONVOLUTIONS | {"Conv3DBackpropFilterV2"}


@pytest.mark.parametrize("name", [*CONVOLVED, "product"])
def test_convolutions_and_products_are_timed_alone(name):
    build, shape = CONVOLVED.get(name, (lambda: layers.Dense(64), (256, 100)))
    nodes = [node for node in gradients_of(build(), shape) if is_timed_alone(node)]
    assert len(nodes) == (2 if name == "3-D" else 3)
    assert all(0 < seconds_alone(node) < 1 for node in nodes)


IMAGES = (64, 16, 16, 32)
SHORT = (64, 1, 1, 32)
SLOW_ONES = {
    "average": ("Mean", lambda x: tf.reduce_mean(x, [1, 2]), IMAGES),
    "sum over examples": ("Sum", lambda x: tf.reduce_sum(x, 0), IMAGES),
    "least": ("Min", lambda x: tf.reduce_min(x, -1), IMAGES),
    "product": ("Prod", lambda x: tf.reduce_prod(x, -1), IMAGES),
    "products of each example": ("BatchMatMulV2", lambda x: tf.matmul(x, x, transpose_b=True), IMAGES),
    "softmax": ("Softmax", lambda x: tf.nn.softmax(x), IMAGES),
    "tiled": ("Tile", lambda x: tf.tile(x, [1, 16, 16, 1]), SHORT),
    "largest of a pool": ("MaxPool", lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"), IMAGES),
    "average of a pool": ("AvgPool", lambda x: tf.nn.avg_pool2d(x, 3, 2, "VALID"), IMAGES),
    "a factor for each channel": ("Mul", lambda x: x * tf.ones([32]), IMAGES),
    "less the average": ("Sub", lambda x, y: x - y, IMAGES, SHORT),
}


@pytest.mark.parametrize("name", SLOW_ONES)
def test_what_does_more_than_read_and_write_is_timed_alone(name):
    kind, function, *shapes = SLOW_ONES[name]
    [node] = [op.node for op in traced(function, *shapes).nodes if op.kind == kind]
    assert is_timed_alone(node) and 0 < seconds_alone(node) < 1


@pytest.mark.parametrize("pool", [tf.nn.max_pool2d, tf.nn.avg_pool2d, tf.nn.max_pool3d, tf.nn.avg_pool3d])
def test_gradients_of_pools_are_timed_alone(pool):
    shape = (64, 16, 16, 32) if pool.__name__.endswith("2d") else (64, 4, 8, 8, 32)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(pool(x, 2, 2, "SAME") ** 2)
        return tape.gradient(total, x)

    nodes = [op.node for op in traced(step, shape).nodes if op.kind in SLOW and "Pool" in op.kind]
    assert len(nodes) == 2 and all(is_timed_alone(node) and 0 < seconds_alone(node) < 1 for node in nodes)


def test_more_examples_take_as_many_times_as_long_and_are_not_timed_again():
    timed = []
    for examples in (3, 6, 6000):
        [forward, *_] = gradients_of(layers.Conv2D(8, 3), (examples, 33, 33, 8))
        timed.append(seconds_alone(forward))
    assert timed == pytest.approx([timed[0], 2 * timed[0], 2000 * timed[0]])


def test_weights_are_not_cut_as_examples_are(monkeypatch):
    """The kernel is larger than the images, and its first axis is as long as the batch."""
    seen = {}

    def timed(kind, inputs, attributes):
        seen[kind] = dict(inputs)
        return 0.0 if kind == "MatMul" else 1.0

    monkeypatch.setattr(timed_alone, "_timed", timed)
    kernel, fits = [3, 3, 512, 512], 2**22 // (4 * 8 * 8 * 512)
    nodes = gradients_of(layers.Conv2D(512, 3, padding="same"), (3, 8, 8, 512))
    assert [seconds_alone(node) for node in nodes] == pytest.approx([3 / fits] * 3)
    images = [fits, 8, 8, 512]
    assert seen["Conv2D"] == {"input": images, "filter": kernel}
    assert seen["Conv2DBackpropInput"] == {"input_sizes": tuple(images), "filter": kernel, "out_backprop": images}
    assert seen["Conv2DBackpropFilter"] == {"input": images, "filter_sizes": tuple(kernel), "out_backprop": images}


def test_what_cores_cannot_time_alone_or_need_not_goes_by_flops_or_bytes():
    half = layers.Conv2D(8, 3, dtype="float16")
    half.build((64, 20, 20, 3))
    others = {
        "large": traced(lambda a, b: tf.matmul(a, b), (8, 2048), (2048, 2049)),
        "tiny": traced(lambda a, b: tf.matmul(a, b), (10, 10), (10, 10)),
        "dilated": traced(lambda a, b: tf.nn.conv2d(a, b, 1, "SAME", dilations=2), (64, 20, 20, 3), (3, 3, 3, 8)),
        "16 bits": traced(lambda a: half(a), (64, 20, 20, 3)),
        "groups": traced(lambda a, b: tf.nn.conv2d(a, b, 1, "SAME"), (64, 20, 20, 6), (3, 3, 3, 8)),
        "channels first": traced(lambda a, b: tf.nn.conv2d(a, b, 1, "SAME", "NCHW"), (64, 3, 40, 3), (3, 3, 3, 8)),
        "by hand": traced(
            lambda a, b: tf.nn.conv2d(a, b, 1, [[0, 0], [1, 2], [1, 2], [0, 0]]), (64, 20, 20, 3), (3, 3, 3, 8)
        ),
        "of one size": traced(lambda a, b: a * b, (2000, 2000), (2000, 2000)),
        "of no examples": traced(lambda a: tf.tile(a, [2000, 1]), (1, 2000)),
        "of axes that are not known": traced(lambda a, b: tf.reduce_sum(a, tf.cast(b, tf.int32)), (2000, 2000), (1,)),
    }
    for name, graph in others.items():
        nodes = [op.node for op in graph.nodes if op.flops or op.kind in ("Mul", "Tile", "Sum")]
        assert len(nodes) == 1 and not is_timed_alone(nodes[0]), name


def test_only_cores_time_operations_alone():
    graph = traced(lambda a, b: tf.nn.conv2d(a, b, 1, "SAME"), (64, 20, 20, 3), (3, 3, 3, 8))
    [node] = [op.node for op in graph.nodes if op.flops]
    quick = {"flops": lambda policy: 1e30, "moving": lambda size: 0.0, "start": 0.0}
    assert least_seconds(graph, Machine(**quick, fuses=False, times_alone=True)) == seconds_alone(node)
    assert least_seconds(graph, Machine(**quick, fuses=False, times_alone=False)) < 1e-12
    assert not bt.ACCELERATORS["H100"].times_alone and this_machine().times_alone != this_machine().fuses
