"""A network in two stages, each in a process of its own.

python -m bigtrain_nb.launch run --workers 2 pipeline.py
"""

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

WIDTH = 64

devices = bt.cluster_devices()  # from here on, the chief is alone: the other process serves it

keras.utils.set_random_seed(1)
stages = []
for device in devices[:2]:
    with tf.device(device):
        layers = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(2)]
        stages.append(keras.Sequential([keras.Input((WIDTH,)), *layers]))

model = bt.Pipelined(stages, micro_batches=4, devices=devices[:2])
model.compile(keras.optimizers.SGD(0.5), "mse")
x = tf.random.stateless_normal((256, WIDTH), seed=(1, 2))
history = model.fit(x, tf.tanh(x[:, ::-1]), batch_size=64, epochs=3, shuffle=False, verbose=0).history

places = [stage.variables[0].value.device for stage in model.stages]
told = ", ".join(place.split("job:")[-1] for place in places)
print(f"loss {history['loss'][0]:.3f} to {history['loss'][-1]:.3f}, stages on {told}")
