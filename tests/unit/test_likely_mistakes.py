"""Likely mistakes give our own error message, with the setting, the value and the allowed values."""

import re
from pathlib import Path

import numpy as np
import pytest
from equal_models import TwoNetworks, net, on

import bigtrain_nb as bt
from bigtrain_nb.advanced.text.text_data import TextData
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.data.images import ImageData
from bigtrain_nb.measure.results import Comparison

MISTAKES = {
    # Measuring
    "bt.throughput(MODEL)": "source must be an iterable of batches or a step function, not <Functional",
    "bt.throughput(MODEL.train_on_batch)": "a step function takes no arguments, like lambda: train_step(batch)",
    "bt.throughput('text')": "source must be an iterable of batches or a step function, not 'text'",
    "bt.throughput({'image': [1]})": "source must be an iterable of batches or a step function, not {'image': [1]}",
    "bt.throughput(np.float32(2))": "source must be an iterable of batches or a step function, not ",
    "bt.throughput([])": "source yielded no batch",
    "bt.throughput(DATASET, seconds='4')": "seconds='4' must be a positive, finite number of seconds",
    "bt.throughput(DATASET, progress=True)": "progress=True must be a function of two arguments: the fraction done",
    "bt.throughput(lambda: 0, seconds=0.1)": "source returned 0: a step function must return how many examples",
    "bt.compare(DATASET)": "compare takes a dict of two or more sources, {name: function that returns a fresh source}",
    "bt.compare([1, 2])": "not [1, 2]: measure a single source with bt.throughput(source)",
    "bt.compare({'a': DATASET, 'b': DATASET})": "the factory of 'a' must be a function that returns a fresh source",
    "bt.compare({'a': len, 'b': len})": "it is called without arguments",
    "bt.compare({'a': dataset})": "expected at least two sources to compare, not 1",
    "bt.compare({1: dataset, 2: dataset})": "the name of a source=1 must be a string",
    "bt.compare({'a': dataset, 'b': dataset}, seconds=nan)": "seconds=nan must be a positive, finite number",
    "bt.race(lambda size: DATASET, batch=[4, 8])": "must be a function that takes the choices, batch",
    "bt.race(lambda batch: DATASET, batch=4)": "batch=4 must be a list of one or more choices",
    "bt.race(lambda batch: DATASET, batch=[])": "batch=[] must be a list of one or more choices",
    "bt.race(lambda batch: DATASET, batch='abc')": "batch='abc' must be a list of one or more choices",
    "bt.race(lambda batch: DATASET, batch=[4])": "expected at least two sources to compare, not 1",
    "bt.race(lambda batch: DATASET, batch=[1, '1'])": "two settings have the same name, batch=1: give each",
    "bt.race(int, batch=[4, 8])": "build=<class 'int'> must be a function that takes the choices, batch",
    "bt.Lab(DATASET, batch=[4])": "Lab takes a function that builds a source from the choices",
    "bt.Lab(dataset, batch=4)": "batch=4: expected a list of choices",
    "bt.Lab(dataset, batch=[])": "batch=[]: expected a list of choices, a range of integers, True or False",
    "bt.Lab(dataset, batch=[1, True])": "batch has two equal choices, True and another: leave one out, or use strings",
    "bt.race(lambda a, b: [[1]], a=range(99), b=range(9))": "891 or more combinations, but a race takes at most 256",
    "bt.Lab(dataset, batch=[4, '4'])": "batch has 2 choices 4: give each choice values that print differently",
    "bt.Lab(dataset, work=[lambda: 1, lambda: 2])": "work has 2 choices <lambda>: give each choice values that print",
    "bt.Lab(dataset, notes=312, batch=[4])": "notes=312 must be a function: notes(source, **settings) returns",
    "bt.Lab(dataset, seconds=0, batch=[4])": "seconds=0 must be a positive, finite number of seconds",
    "bt.Lab(lambda batch: 3.5, batch=[4]).run()": "returned 3.5; a Lab's function must return an iterable",
    "bt.Lab(lambda batch: DATASET, batch=[4]).run(batch=8)": "batch=8 is not among the choices: expected one of 4",
    "bt.Lab(lambda batch: DATASET, batch=[4]).sweep(['batch'])": "unknown setting ['batch']: expected one of batch",
    "bt.Lab(lambda batch: DATASET, batch=[4]).sweep('')": "unknown setting '': expected one of batch",
    "COMPARISON.ratio('typo', 'b')": "a='typo' must be one of a, b",
    "COMPARISON.ratio('a', 'typo')": "b='typo' must be one of a, b",
    "COMPARISON.extend(5)": "only what bt.compare returned in this process can be extended; compare the same",
    "COMPARISON.save(None)": "path=None must be a path, as a string or a pathlib.Path",
    "COMPARISON.save('.')": "path='.' is a folder: give the path of a file",
    "bt.load(None)": "None holds no saved measurement",
    "bt.load(MODEL)": "holds no saved measurement: bt.load reads files that .save(path)",
    # Data
    "bt.photo_crops('4')": "count='4' must be an integer of at least 1",
    "bt.photo_crops(8, 4, size=1.5)": "size=1.5 must be an integer of at least 1",
    "bt.photo_crops(8, 4, cache=3)": "cache=3 must be a path",
    "bt.source_text('8')": "megabytes='8' must be a positive, finite number",
    "bt.source_text(-1)": "megabytes=-1 must be a positive, finite number",
    "bt.text_folder(None)": "folder=None must be a path",
    "bt.text_folder('.', '/home/me/*.txt')": "pattern='/home/me/*.txt' must be a pattern of paths below the folder",
    "bt.text_folder('.', ['*.txt'])": "pattern=['*.txt'] must be a pattern of paths below the folder",
    "bt.text_folder('.', test_fraction=nan)": "test_fraction=nan must be a number between 0 and 1",
    "bt.TokenRows([1, 2, 3], [2, 2], 8)": "the lengths add up to 4 tokens, but there are 3",
    "bt.TokenRows([1.5], [1], 8)": "tokens must be an array of integers with 1 dimension, not float64",
    "bt.TokenRows([[1, 2]], [2], 8)": "shape (1, 2)",
    "bt.TokenRows([1, 2], 2, 8)": "lengths must be an array of integers with 1 dimension, not int64 with shape ()",
    "bt.TokenRows([1, 2, 3], [4, -1], 8)": "must be 0 or more tokens each",
    "bt.TokenRows([1, 2], [2], 0)": "length=0 must be an integer of at least 1",
    "bt.gpt(packed=1)": "packed=1 must be True or False",
    "bt.Meter(gradients=1)": "gradients=1 must be True or False",
    "TEXT.array('validation')": "split='validation' must be one of train, test",
    "bt.Pipeline(data=IMAGES, batch=0)": "batch=0 must be an integer of at least 1",
    "bt.Pipeline(data=IMAGES, prefetch='auto')": "prefetch='auto' must be \"AUTOTUNE\" or an integer of at least 0",
    "bt.Pipeline(data=IMAGES, repeat=3)": "repeat=3 must be True or False",
    "bt.Pipeline(data=IMAGES, split='validation')": "split='validation' must be one of train, test",
    "bt.Pipeline(data=IMAGES, cache='memroy')": "cache='memroy' must be None",
    "bt.Pipeline(data=IMAGES, image_size=0)": "image_size=0 must be an integer of at least 1",
    "bt.Pipeline(data=IMAGES, num_parallel_calls=1.5)": "num_parallel_calls=1.5 must be ",
    "bt.Pipeline(data=IMAGES, finish='scale')": "finish='scale' must be a function",
    "bt.Pipeline(data=DATASET)": "must be an ImageData, or a list of paths with a custom parse",
    "bt.Pipeline(data=['a.tfrecord'])": "custom data needs parse=",
    "bt.Pipeline(data='images', parse=len)": "data='images' must be an ImageData, or a list of paths",
    "bt.Pipeline(data=['a'], parse=len, split='test')": "needs an ImageData: otherwise, give the list",
    "bt.Pipeline(data=['a'], parse=len, image_size=32)": "image_size=32 needs the default parse: leave it out",
    "bt.Pipeline(data=['a'], parse=len, exact=True)": "exact=True needs the default parse",
    "bt.Pipeline(data=[], parse=len)": "data holds no train shards: there is nothing to read",
    "bt.diagnose([1, 2])": "diagnose takes a Pipeline or a tf.data.Dataset, not list",
    "bt.diagnose(DATASET, seconds=0)": "seconds=0 must be a positive, finite number of seconds",
    "bt.diagnose(tf.data.Dataset.range(4), seconds=0.1)": "with no examples along a leading dimension",
    "bt.diagnose(DATASET.take(0), seconds=0.1)": "the dataset yielded no batch",
    "bt.diagnose(tf.data.Dataset.from_tensors(tf.zeros([0, 3])), seconds=0.1)": "(0, 3), with no examples along a",
    # Models and training
    "bt.Model(INPUTS, OUTPUTS, micro_batches=1.5)": "micro_batches=1.5 must be an integer of at least 1",
    "bt.Model(INPUTS, OUTPUTS, microbatches=2)": "no argument 'microbatches': did you mean 'micro_batches'",
    "bt.Model(INPUTS, OUTPUTS, reduce_dtype='float16')": "reduce_dtype='float16' must be one of float32, bfloat16",
    "bt.Model(INPUTS, OUTPUTS, shard_optimizer=True)": "needs several replicas, but this model has one",
    "bt.Model(INPUTS, OUTPUTS, shard_optimizer=2)": "shard_optimizer=2 must be True or False",
    "bt.Model.of(lambda size: MODEL)": "Model.of takes a Keras model, or a function that builds one, not <function",
    "bt.Model.of(lambda: DATASET)": "Model.of takes a Keras model, or a function that builds one, not <function",
    "bt.Model.of(TWO, micro_batches=2)": "several optimizers, as in a GAN, cannot be written as one loss",
    "bt.load_model('no_such.keras')": "no_such.keras: there is no such file",
    "bt.load_model(MODEL)": "path=<Functional",
    "bt.load_model(__file__, compile='adam')": "compile='adam' must be True or False",
    "bt.conv_net(classes=0)": "classes=0 must be an integer of at least 1",
    "bt.conv_net(width='16')": "width='16' must be an integer of at least 1",
    "bt.conv_net(norm='layer')": "norm='layer' must be one of group, batch",
    "bt.conv_net(image_size=(64, 64))": "image_size=(64, 64) must be an integer",
    "bt.gpt(layers=1.5)": "layers=1.5 must be an integer of at least 1",
    "bt.gpt(heads=256)": "heads=256 must be an integer of at least 1 and at most 128",
    "bt.gpt(dropout=1)": "dropout=1 must be a number of at least 0 and below 1",
    "bt.gpt(nested_blocks='all')": "nested_blocks='all' must be True or False",
    "bt.devices('2')": "at_least='2' must be an integer of at least 1",
    "bt.devices(2**70)": "must be an integer of at least 1 and at most 256",
    "bt.mirrored(-1)": "count=-1 must be an integer of at least 1",
    "bt.Resume(MODEL, 'checkpoints')": "folder=<Functional",
    "bt.Resume('gpt[lr=1]', MODEL)": "would treat the path of a checkpoint as a pattern, and find none",
    "bt.Resume('checkpoints', DATASET)": "must be the Keras model to train, as in Resume(folder, model)",
    "bt.Resume('checkpoints', keras.Sequential([keras.layers.Dense(1)]))": "has no weights yet: start it with",
    "bt.Resume('checkpoints', UNCOMPILED)": "has no optimizer yet: compile it",
    "bt.Resume('checkpoints', MODEL, every=0)": "every=0 must be an integer of at least 1",
    "bt.Resume('checkpoints', MODEL).rest([1, 2])": "dataset=[1, 2] must be a tf.data.Dataset of batches",
    "bt.Resume('checkpoints', MODEL).data(DATASET)": "must be a function of the epoch number",
    "bt.Resume('checkpoints', MODEL).data(lambda epoch: [1, 2])": "make_epoch(0) must return a tf.data.Dataset",
    "bt.Resume('checkpoints', MODEL).step_done()": "call step_done inside `for epoch in resume.epochs(count):`",
    "bt.warmup_cosine(0.1, 100, 100)": "warmup_steps=100 must be an integer of at least 0 and at most 99",
    "bt.warmup_cosine(0.1, 0.1, 100)": "warmup_steps=0.1 must be an integer",
    "bt.warmup_cosine(nan, 10, 100)": "peak=nan must be a positive, finite number",
    "bt.warmup_cosine(0.1, 1, 2.5)": "total_steps=2.5 must be an integer of at least 1",
    # Memory, shards and stages
    "bt.Model.of(MODEL, fully_shar='x')": "no argument 'fully_shar': did you mean 'fully_shard'",
    "bt.Model.of(MODEL, fully_shard=2)": "fully_shard=2 must be a regular expression for names",
    "bt.recompute(DATASET)": "must be a Keras model or layer",
    "bt.recompute(MODEL, 'block.*')": "layers='block.*' selects no layer of",
    "bt.recompute(MODEL, keras.layers.Dense)": "a function of a layer, such as lambda layer: isinstance(layer, ",
    "bt.recompute(MODEL, '*_block')": "layers='*_block' is not a regular expression (nothing to repeat",
    "bt.recompute(MODEL, 3)": "layers=3 must be a regular expression for names",
    "bt.chunk_attention(MODEL, chunks=2, layers=lambda: MODEL)": "must be a regular expression for names",
    "bt.fuse_attention(MODEL)": "has no attention layer",
    "bt.fuse_attention(None)": "model=None must be a Keras model or layer",
    "bt.fuse_attention(MODEL, layers=keras.layers.Dense)": "a function of a layer, such as lambda layer: isinstance",
    "bt.segment_mask(tf.ones([2, 4], 'int32'), most=0)": "most=0 must be an integer of at least 1",
    "bt.cuda_kernel(None, 'scale', 1, 32, [])": "source=None must be a string",
    "bt.chunk_attention(MODEL, chunks=2)": "has no attention layer",
    "bt.chunk_attention(None, chunks=2)": "model=None must be a Keras model or layer",
    "bt.chunk_attention(MODEL, chunks=1.5)": "chunks=1.5 must be an integer of at least 1",
    "bt.chunk_head(MODEL, rows=0)": "rows=0 must be an integer of at least 1",
    "bt.chunk_head(DATASET)": "must be a Keras model",
    # Processes: refused before any is started
    "bt.run_workers('train.py', 2)": "there is no script 'train.py' in ",
    "bt.run_workers(print, 2)": "script_or_code=<built-in function print> must be the path of a script, or Python code",
    "bt.run_workers('pass', '2')": "workers='2' must be an integer of at least 1",
    "bt.run_workers('pass', 2, arguments='--steps 3')": "arguments='--steps 3' must be a list",
    "bt.run_workers('pass', 2, env='A=1')": "env='A=1' must be a dictionary",
    "bt.run_workers('pass', 2, env={'A': None})": "has None as a value: leave that variable out",
    "bt.run_workers('pass', 2, timeout=0)": "timeout=0 must be a positive, finite number of seconds",
    "bt.strategy(timeout='600')": "timeout='600' must be a positive, finite number of seconds",
    "bt.peak_memory(DATASET.cardinality())": "must be a function that can be called with no arguments",
    "bt.peak_memory(lambda: list(DATASET))": "): build datasets, iterators and models",
    "bt.peak_memory(lambda: bt.mirrored(2))": "asks for several devices, but peak_memory provides one",
    "bt.peak_memory(dataset, batch=4)": "must be a function that can be called with batch",
    # Plans
    "bt.plan_step(MODEL, 'all')": "batch must be a number of examples, one batch (x, y)",
    "bt.plan_step(MODEL, np.zeros([8, 3]))": "batch must be a number of examples, one batch (x, y)",
    "bt.plan_step(MODEL, (8,))": "batch must be a number of examples, one batch (x, y)",
    "bt.plan_step(MODEL, tf.data.Dataset.range(3))": "batch must be a number of examples, one batch (x, y)",
    "bt.plan_step(MODEL, DATASET.take(0))": "the dataset yielded no batch",
    "bt.plan_step(MODEL, DATASET.map(lambda x, y: x))": "nothing is trained, or the batch has no targets",
    "bt.plan_step(MODEL, 8, loss=lambda y, made: tf.reduce_sum(y))": "the loss depends on no weight of ",
    "bt.plan_step(keras.Sequential([keras.layers.Dense(3)]), 8)": "has no weights to train yet: give it a keras.Input",
    "bt.plan_step(MODEL, 8, devices=0)": "devices=0 must be an integer of at least 1",
    "bt.plan_step(MODEL, 8, reduce_dtype='float16')": "reduce_dtype='float16' must be one of float32, bfloat16",
    "bt.plan_step(MODEL, 8, shard_optimizer=True)": "shard_optimizer=True needs several devices to share the state",
    "bt.plan_step(MODEL, 8, fully_shard='dense')": "fully_shard needs several devices to share the weights",
    "bt.plan_step(MODEL, 8, fully_shard='frist', devices=2)": "fully_shard='frist' selects no layer of",
    "bt.plan_step(NESTED, 8, fully_shard='.*', devices=2)": "and fully_shard selects both: choose the inner or the",
    "bt.plan_step(MODEL, 8, fully_shard='dense', shard_optimizer=True, devices=2)": "True cannot be combined",
    "bt.plan_step(MODEL, 8, optimizer=LAMB, shard_optimizer=True, devices=2)": "Lamb is not known to update each",
    "bt.plan_step(MODEL, 8, optimizer=LAMB, fully_shard='dense.*', devices=2)": "Lamb is not known to update each",
    "bt.plan_step(DATASET, MODEL)": "expected a Keras model, not ",
    "bt.plan_step(MODEL, 0)": "batch=0 must be an integer of at least 1",
    "bt.plan_step(MODEL, 8, on='a100 80 gb')": "on='a100 80 gb' must be one of T4, ",
    "bt.plan_step(MODEL, 8, policy='float32')": "a built model already has its policy",
    "bt.plan_cluster('7 B', 8)": "plan_cluster takes a bt.Transformer(layers, width, heads, ...), not str",
    "bt.plan_cluster(bt.SIZES['7 B'], 0.5)": "batch=0.5 must be an integer of at least 1",
    "bt.plan_cluster(bt.SIZES['7 B'], 8, zero_stage=4)": "zero_stage=4 must be an integer of at least 0 and at",
    "bt.plan_cluster(bt.SIZES['7 B'], 8, on='T4')": "on='T4' must be one of A100 40 GB, ",
    "bt.plan_cluster(bt.SIZES['7 B'], 8, devices=1)": "fit in no layout on devices=1 H100: use more devices",
    "bt.plan_cluster(bt.SIZES['7 B'], 8, on='TPU v6e', policy='float8')": "policy='float8' is no faster on TPU v6e",
    "bt.plan_cluster(bt.SIZES['7 B'], 8, optimizer='adamm')": "optimizer='adamm' must be one of sgd, ",
    "bt.plan_cluster(bt.SIZES['7 B'], 8, recompute='all')": "recompute='all' must be one of none, selective",
    "bt.plan_cluster(bt.SIZES['7 B'], 8, tensor_parallel=5)": "tensor_parallel=5 must divide the 32 heads",
    "bt.plan_cluster(bt.SIZES['Llama 3 8 B'], 8, tensor_parallel=16)": "tensor_parallel=16 must divide the 8 KV heads",
    "bt.plan_cluster(bt.SIZES['7 B'], 8, pipeline_parallel=33)": "must be an integer of at least 1 and at most 32",
    "bt.plan_cluster(bt.SIZES['7 B'], 64, devices=64, shard_size=7)": "pipeline_parallel x shard_size",
    "bt.plan_cluster(bt.SIZES['7 B'], 8, shard_size=8, zero_stage=0)": "shard_size needs zero_stage=1, 2 or 3",
    "bt.plan_cluster(bt.SIZES['GPT-2'], 1, devices=64)": "a sequence or more per data-parallel replica",
    "bt.plan_cluster(bt.Transformer(128, 25600, 160, length=10**6), 1)": "fit in no layout on devices=any H100",
    "bt.plan_cluster(bt.SIZES['7 B'], 8, network=0)": "network=0 must be a positive, finite number of bytes/s",
    "PLAN.training('1e9')": "tokens='1e9' must be a positive, finite number of tokens",
    "PLAN.training(1e9, price_per_hour='2 $')": "price_per_hour='2 $' must be a",
    "PLAN.training(1e9, mtbf_hours=0)": "mtbf_hours=0 must be a positive, finite number of hours between failures",
    "PLAN.training(1e9, checkpoint_seconds=-1)": "checkpoint_seconds=-1 must be a positive",
    "PLAN.training(1e9, interval_seconds=0)": "interval_seconds=0 must be a positive",
    "PLAN.training(1e9, restart_seconds=-1)": "restart_seconds=-1 must be a finite number of seconds, 0 or more",
    "PLAN.training(1e9, spares=-0.1)": "spares=-0.1 must be a finite number of spare devices per device in use, 0 or",
    "PLAN.training(1e9, evaluation=-1)": "evaluation=-1 must be a finite number of evaluation tokens per training",
    "bt.Transformer(12, 768, 11)": "width=768 must be a multiple of heads=11",
    "bt.Transformer('12', 768, 12)": "layers='12' must be an integer of at least 1",
    "bt.Transformer(12, 768, 12, hidden=0)": "hidden=0 must be an integer of at least 1",
    "bt.Transformer(12, 768, 12, gated=1)": "gated=1 must be True or False",
    "bt.Transformer(12, 768, 12, key_value_heads=5)": "heads=12 must be a multiple of key_value_heads=5",
    "bt.SIZES['7 B'].activations_of_a_layer(8, recompute='some')": "recompute='some' must be one of none, selective",
    "bt.SIZES['7 B'].flops(None)": "batch=None must be an integer of at least 1",
    "bt.SIZES['7 B'].flops(8, 'all')": "recompute='all' must be one of none, selective, everything",
    "bt.all_reduce_seconds('1e9', 8, 1e9)": "size='1e9' must be a finite number of bytes, 0 or more",
    "bt.all_reduce_seconds(1e9, 0, 1e9)": "devices=0 must be an integer of at least 1",
    "bt.all_reduce_seconds(1e9, 8, 0)": "bandwidth=0 must be a positive, finite number of bytes/s",
    # Inspecting a step
    "bt.profile(MODEL)": "profile needs the dataset that",
    "bt.profile(DATASET, MODEL)": "profile takes a step function, a compiled Keras model or a dataset, not",
    "bt.profile(MODEL, [1, 2])": "dataset=[1, 2] must be the tf.data.Dataset that the model trains on",
    "bt.profile(lambda: 1, DATASET)": "must be a function of a batch of the dataset",
    "bt.score(series=['00'])": "series=['00'] must be True or False",
    "bt.profile(UNCOMPILED, DATASET)": "is not compiled: a step needs the loss and the optimizer",
    "bt.profile(len)": "step=<built-in function len> must be a function without arguments",
    "bt.profile(MODEL, DATASET.take(0))": "the dataset yielded no batch",
    "bt.profile(DATASET.take(0))": "the dataset yielded no batch",
    "bt.profile(lambda batch: batch, iter(DATASET), steps=2)": "no batch in a second pass: give an iterable",
    "bt.profile(MODEL, DATASET, steps=0)": "steps=0 must be an integer of at least 1",
    "bt.find_overflow(DATASET, MODEL)": "find_overflow takes a compiled Keras model, not ",
    "bt.find_overflow(UNCOMPILED, DATASET)": "is not compiled: call compile(...) with a loss",
    "bt.find_overflow(MIRRORED, DATASET)": "replicas: build it without the strategy, and give the batch of one",
    "bt.find_overflow(MODEL, None)": "or a dataset of such batches, not None",
    "bt.find_overflow(MODEL, ())": "find_overflow takes a batch of arrays or dense tensors",
    "bt.find_overflow(MODEL, (np.ones([4, 3]),) * 4)": "find_overflow takes a batch of arrays or dense tensors",
    "bt.find_overflow(MODEL, DATASET.take(0))": "the dataset yielded no batch",
    "bt.find_overflow(MODEL, np.ones([4, 3]))": "on inputs alone fails ",
    "bt.preflight(DATASET, MODEL)": "preflight takes a compiled Keras model, not ",
    "bt.preflight(UNCOMPILED, DATASET)": "is not compiled: a step needs the loss and the optimizer",
    "bt.preflight(MIRRORED, DATASET)": "has several replicas: build it without the strategy, and give the batch of one",
    "bt.preflight(MODEL, iter(DATASET))": "can be read only once, and what is read here would be missing in fit",
    "bt.preflight(MODEL, [(tf.ragged.constant([[1], [2, 3]]), [1, 2])])": "RaggedTensor of shape (2, None), but"
    " preflight takes dense tensors: give it a dataset of dense batches, data.map(lambda x, y: (x.to_tensor(), y))",
    "bt.preflight(MODEL, np.ones([4, 3]))": "must be the dataset that fit gets: a tf.data.Dataset",
    "bt.preflight(MODEL, DATASET, minutes=0)": "minutes=0 must be a positive, finite number of minutes",
    "bt.preflight(MODEL, DATASET, checks='data')": "checks='data' must be a list, such as ['data', 'leaks']",
    "bt.preflight(MODEL, DATASET, checks=['dta'])": "checks='dta' must be one of data, leaks, ",
    # Predictions and exercises
    "bt.check(len)": "name=<built-in function len> must be the name of an exercise, like ",
    "bt.check('measure_first.rate', 3.5)": "answer=3.5 must be your function itself, without parentheses",
    "bt.check('measure_first.rat', len)": "no exercise named 'measure_first.rat'; known: measure_first.rate",
    "bt.check('typo', len)": "no exercise named 'typo': the first part is one of ",
    "bt.hint()": "name=None must be the name of an exercise",
    "bt.solution(3)": "name=3 must be the name of an exercise",
    "bt.predict('speedup', '2')": "value='2' must be a finite number, or ... for no prediction",
    "bt.predict('speedup', nan)": "value=nan must be a finite number, or ... for no prediction",
    "bt.predict(2.0, 'speedup')": "name=2.0 must be a string",
    "bt.reveal(3, 2.0)": "name=3 must be the name of a prediction",
    "bt.reveal(predicted(), None)": "measured=None must be a Ratio, a Result or a number",
    "bt.reveal(predicted(), nan)": "measured=nan must be a finite number",
}
"""{call: part of its error message}. Some calls pass a model or a dataset as the wrong argument."""

WITHOUT_MISTAKES = {
    *("ACCELERATORS", "PREEMPTED", "SIZES", "tf"),  # not functions
    *("LossScaleHistory", "cores", "machine", "score"),  # no arguments, or a single switch
    *("Race", "Result"),  # created only by this package
}


def names():
    """Return the names that the calls use."""

    def dataset():
        return DATASET

    def predicted():
        bt.predict("speedup", 2.0)
        return "speedup"

    numbers = np.ones([8, 3], "float32")
    DATASET = tf.data.Dataset.from_tensor_slices((numbers, numbers)).batch(4)
    INPUTS = keras.Input((3,))
    OUTPUTS = keras.layers.Dense(3)(INPUTS)
    MODEL, UNCOMPILED = keras.Model(INPUTS, OUTPUTS), keras.Model(INPUTS, OUTPUTS)
    MODEL.compile("sgd", "mse")
    with on(2):
        MIRRORED = net(keras.Model)
        MIRRORED.compile("sgd", "mse")
    TWO = TwoNetworks(net(keras.Model), net(keras.Model))
    TWO.compile()
    NESTED, LAMB = keras.Sequential([INPUTS, keras.Sequential([keras.layers.Dense(3)])]), keras.optimizers.Lamb()
    PLAN = bt.plan_cluster(bt.SIZES["7 B"], 64, devices=8)
    IMAGES = ImageData(Path(), ("cat",), ("shard",), ("shard",), ("file",), ("file",))
    TEXT = TextData(Path("train.txt"), Path("test.txt"), 1, 1, 2)
    results = [bt.Result(name, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), "steps/s", 0.1, 6, 1.0) for name in ("a", "b")]
    COMPARISON = Comparison({one.name: one for one in results})
    return {**globals(), **locals(), "nan": float("nan")}


@pytest.fixture(scope="module")
def namespace():
    return names()


@pytest.mark.parametrize("call", MISTAKES)
def test_it_ends_in_a_sentence(call, namespace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, TypeError, OSError, RuntimeError)) as caught:
        eval(call, namespace)
    assert MISTAKES[call] in str(caught.value)
    assert "bigtrain_nb" in Path(caught.traceback[-1].path).parts


def test_each_public_name_that_takes_arguments_is_in_the_table():
    called = set(re.findall(r"bt\.(\w+)", " ".join(MISTAKES)))
    assert called | WITHOUT_MISTAKES >= set(bt.__all__)
