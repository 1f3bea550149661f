"""This project's promises for GPUs, one function per promise: test_first_hour.py runs each in a process.

By hand: python tests/gpu/checks.py check NAME. It prints its result, or raises; then follow its advice.
"""

import subprocess
import sys
import time
from dataclasses import dataclass

from bigtrain_nb.common.hardware import nvidia_gpus

CHECKS = {}


@dataclass
class Check:
    """``run`` returns its result in words, or raises; then ``advice`` says what to do."""

    run: object
    gpus: int
    seconds: int
    advice: str


def check(advice, gpus=1, seconds=300):
    def register(function):
        CHECKS[function.__name__] = Check(function, gpus, seconds, advice)
        return function

    return register


def expect(holds, words):
    """Return the words if the condition holds; otherwise raise with them."""
    if not holds:
        raise AssertionError(words)
    return words


# One GPU.


@check(
    "TensorFlow sees fewer GPUs than the driver: pip install 'tensorflow[and-cuda]', or look at CUDA_VISIBLE_DEVICES."
)
def tensorflow_sees_all():
    from bigtrain_nb import tf

    seen = len(tf.config.list_physical_devices("GPU"))
    built_for = tf.sysconfig.get_build_info().get("cuda_compute_capabilities")
    return expect(seen == len(nvidia_gpus()), f"{seen} of {len(nvidia_gpus())}; kernels for {built_for}")


@check("Kernels are compiled at first use here. It happens once: set CUDA_CACHE_MAXSIZE=4294967296.", seconds=2400)
def first_product():
    from bigtrain_nb import tf

    began = time.perf_counter()
    ones = tf.ones([512, 512])
    (ones @ ones).numpy()
    took = time.perf_counter() - began
    return expect(took < 60, f"{took:.1f} s")


@check("TF32 cannot be switched off, or is not used: plans and comparisons in float32 are of another format than said.")
def tf32_can_be_switched_off():
    import numpy as np

    from bigtrain_nb import tf

    factor = tf.random.stateless_normal([512, 512], [1, 2])
    exact = (tf.cast(factor, "float64") @ tf.cast(factor, "float64")).numpy()
    errors = []
    for is_on in (True, False):
        tf.config.experimental.enable_tensor_float_32_execution(is_on)
        errors.append(np.abs((factor @ factor).numpy() - exact).max() / np.abs(exact).max())
    return expect(errors[1] < 5e-6, f"largest error {errors[0]:.0e} with TF32 allowed, {errors[1]:.0e} without")


@check("TensorFlow takes all memory at once: TF_FORCE_GPU_ALLOW_GROWTH=true, before it starts.")
def memory_grows():
    from bigtrain_nb import tf

    before = memory_used()
    (tf.ones([512, 512]) @ tf.ones([512, 512])).numpy()
    taken = max(now - then for now, then in zip(memory_used(), before, strict=True))
    return expect(taken < 4000, f"{taken} MiB taken")


def memory_used():
    """Return the MiB used by all programs, for each GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=True)
    return [int(mebibytes) for mebibytes in done.stdout.split()]


@check("XLA does not find ptxas or libdevice: pip install 'tensorflow[and-cuda]', or compile(jit_compile=False).")
def a_fit_under_xla():
    import numpy as np

    import bigtrain_nb as bt

    model = bt.conv_net(image_size=32, blocks=1, micro_batches=4)
    model.compile("sgd", "mse")
    began = time.perf_counter()
    model.fit(np.zeros((50, 32, 32, 3)), np.zeros((50, 8)), batch_size=16, verbose=0)
    return expect(model.jit_compile, f"jit_compile={model.jit_compile}, {time.perf_counter() - began:.0f} s")


def train_a_deep_gpt(recompute):
    import numpy as np

    import bigtrain_nb as bt

    model = bt.gpt(layers=6, width=512, heads=8, nested_blocks=True)
    if recompute:
        bt.recompute(model, r"block_\d+")
    model.compile("sgd", "sparse_categorical_crossentropy")
    tokens = np.zeros((64, 128), "int32")
    model.train_on_batch(tokens, tokens)


@check("Recomputation saves nothing under XLA: compile(jit_compile=False), and tell the project.", seconds=900)
def recomputation_saves_memory():
    import bigtrain_nb as bt

    whole, again = (bt.peak_memory(train_a_deep_gpt, recompute=recompute) for recompute in (False, True))
    return expect(again < 0.7 * whole, f"{whole:.0f} MiB, recomputed {again:.0f} MiB")


@check("The profiler sees no GPU: allow its counters (NVreg_RestrictProfilingToAdminUsers=0), or run it as root.")
def a_profile_has_the_gpu():
    import keras

    import bigtrain_nb as bt
    from bigtrain_nb import tf

    model = keras.Sequential([keras.Input((512,)), keras.layers.Dense(512)])
    model.compile("sgd", "mse")
    batches = tf.data.Dataset.from_tensors((tf.ones([64, 512]), tf.ones([64, 512]))).repeat()
    places = bt.profile(model, batches, steps=10).places
    return expect(any(place.startswith("GPU") for place in places), str(places))


@check("bt.compare flatters a step that does not wait for the GPU: every speed that it shows here is suspect.")
def a_step_that_does_not_wait_is_not_flattered():
    import bigtrain_nb as bt
    from bigtrain_nb import tf

    factor = tf.random.normal([4096, 4096])
    product = tf.function(lambda: factor @ factor @ factor @ factor)

    def free():
        product()
        return 1

    def waits():
        product()
        tf.test.experimental.sync_devices()
        return 1

    ratio = bt.compare({"waits": lambda: waits, "free": lambda: free}, seconds=8).ratio("free", "waits")
    return expect(ratio.low < 1.2, str(ratio))


@check("Two runs differ with op determinism on: resumed trainings are then equal up to rounding only.")
def determinism_to_the_bit():
    from bigtrain_nb import tf

    tf.config.experimental.enable_op_determinism()
    one, other = fitted(1), fitted(1)
    return expect((one == other).all(), f"largest difference {abs(one - other).max():.0e}")


def fitted(replicas, policy="float32", steps_per_execution=1, **settings):
    """Train a small model on this many GPUs, with a short last batch; return its weights as one array."""
    import keras
    import numpy as np

    import bigtrain_nb as bt
    from bigtrain_nb import tf

    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    x = np.random.default_rng(0).normal(size=(256, 64)).astype("float32")
    y = np.tanh(x[:, :8])
    with bt.mirrored(replicas).scope():
        inputs = keras.Input((64,))
        hidden = keras.layers.Dense(64, "tanh", name="hidden")(inputs)
        model = bt.Model(inputs, keras.layers.Dense(8, dtype="float32")(hidden), **settings)
        model.compile(keras.optimizers.Adam(1e-3, epsilon=1e-4), "mse", steps_per_execution=steps_per_execution)
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(30), epochs=2, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


# Two or more GPUs.

SETTINGS = {
    "micro-batches": {"micro_batches": 4},
    "float16": {"policy": "mixed_float16"},
    "steps per execution": {"steps_per_execution": 4},
    "bfloat16 sums": {"reduce_dtype": "bfloat16"},
    "sharded optimizer": {"shard_optimizer": True},
    "sharded optimizer, bfloat16 weights": {"policy": "bfloat16", "shard_optimizer": True},
    "fully sharded": {"fully_shard": "hidden"},
}
"""Uses of NCCL by `bt.Model`; each has a separate process, because a failed collective can end all others."""


@check("Replicas on GPUs do not train as one does: use one GPU, and tell the project.", gpus=2)
def two_replicas_equal_one():
    from bigtrain_nb import tf

    tf.config.experimental.enable_tensor_float_32_execution(False)
    apart = abs(fitted(1) - fitted(2)).max()
    return expect(apart < 1e-5, f"weights apart by {apart:.0e}")


@check(
    "This setting of bt.Model does not work over NCCL: leave it out here, and tell the project.", gpus=2, seconds=1800
)
def each_setting_of_the_model():
    failed = {}
    for name in SETTINGS:
        done = subprocess.run(
            [sys.executable, __file__, "setting", name], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            failed[name] = (done.stderr.strip().splitlines() or ["no word"])[-1][:200]
    return expect(not failed, str(failed) if failed else f"all {len(SETTINGS)} train")


@check("An error in one replica poisons what follows: restart the kernel after one.", gpus=2)
def an_error_in_one_replica_neither_hangs_nor_poisons():
    import bigtrain_nb as bt
    from bigtrain_nb import tf

    strategy = bt.mirrored(2)

    def step(bad):
        context = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, "float32")
        with tf.control_dependencies([tf.debugging.assert_less(number + bad, 1.5)]):
            return context.all_reduce("SUM", tf.ones([4]) + 0 * bad)

    run = tf.function(lambda bad: strategy.run(step, (bad,)), autograph=False)
    run(tf.constant(0.0))
    try:
        run(tf.constant(1.0))
        raise AssertionError("the error did not come through")
    except tf.errors.OpError:
        run(tf.constant(0.0))
    return "it goes on"


ALL_REDUCE = """
import os, time
from bigtrain_nb import tf
ways = tf.distribute.experimental.CommunicationImplementation
options = tf.distribute.experimental.CommunicationOptions(implementation=ways[os.environ["WAY"]])
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
value = tf.ones([2**24])

def summed():
    return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(value))

step = tf.function(lambda: strategy.run(summed), autograph=False)
step(), step()
tf.test.experimental.sync_devices()
print("READY", flush=True)
began = time.perf_counter()
for _ in range(int(os.environ["STEPS"])):
    step()
tf.test.experimental.sync_devices()
print(f"milliseconds: {1000 * (time.perf_counter() - began) / int(os.environ['STEPS'])}", flush=True)
"""


def all_reduce_job(way, steps, **settings):
    import bigtrain_nb as bt

    environment = {"WAY": way, "STEPS": steps, "NCCL_DEBUG": "WARN"}
    return bt.run_workers(ALL_REDUCE, 2, env=environment, timeout=240, gpus_per_worker=1, **settings)


@check("NCCL between workers is not faster than the ring over gRPC: see NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME.", gpus=2)
def workers_sum_by_nccl():
    took = {}
    for way in ("RING", "NCCL"):
        job = all_reduce_job(way, steps=10)
        job.wait(show=False)
        [line] = [line for line in job.logs(0).splitlines() if line.startswith("milliseconds: ")] or [
            job.logs(0)[-300:]
        ]
        took[way] = float(line.removeprefix("milliseconds: "))
    words = ", ".join(f"{way} {milliseconds:.1f} ms" for way, milliseconds in took.items())
    return expect(took["NCCL"] < took["RING"], f"64 MiB between two workers: {words}")


@check("A killed worker is not noticed by the others: give bt.run_workers and your scheduler a timeout.", gpus=2)
def a_killed_worker_is_noticed():
    job = all_reduce_job("NCCL", steps=10**6, grace_period=150)
    while "READY" not in job.logs(0) and job.exit_code is None:
        time.sleep(0.1)
    began = time.perf_counter()
    job.kill(1)
    while job.codes[0] is None and time.perf_counter() - began < 150:
        time.sleep(0.1)
    noticed = job.codes[0] is not None
    job.stop()
    return expect(noticed, f"after {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    kind, name = sys.argv[1:]
    if kind == "check":
        print(CHECKS[name].run())
    else:
        fitted(2, **SETTINGS[name])
