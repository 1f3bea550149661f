"""What the check of each exercise gives to a function, and what it expects from it."""

EXPECTED = {
    "measure_first.rate": (
        "the sizes of batches, a list of whole numbers; the seconds at which they were ready, a list",
        "examples/s",
    ),
    "measure_first.say": (
        "the low end of the interval of a ratio; its high end; the margin, a share (0.02 if not given)",
        '"faster", "slower", "same" or "unclear"',
    ),
    "measure_first.honest_compare": (
        'measure(name, seconds) -> examples/s of "a" or "b", 30 s in all',
        '"a", "b" or "unclear"',
    ),
    "measure_first_stopwatch.stopwatch": (
        "an endless iterable of batches that have `len` and `numpy()`; now() -> seconds; write_log()",
        "examples/s; it calls write_log once",
    ),
    "feed_the_model.random_crop": (
        "an image [height, width, channels]; the side of the part; a seed; an epoch; a place, all whole numbers",
        "a part of the image [side, side, channels]",
    ),
    "feed_the_model.prepare": (
        "a tf.data.Dataset; parse(element); the size of the shuffle's buffer",
        "a tf.data.Dataset",
    ),
    "feed_the_model.pipeline": (
        "a list of paths; open_shard(path) -> dataset of records; parse(record); augment(example); the batch",
        'a tf.data.Dataset of batches, dictionaries with "number", "label" and "pixels"',
    ),
    "mirror_it.noise_scale": (
        "gradients, float64 [steps, micro-batches, weights]; examples in a micro-batch",
        "the noise scale, in examples",
    ),
    "mirror_it_loops.loop_a": (
        "a strategy; a model [batch, 4] -> [batch, 3] of its scope; an SGD of its scope; 64 unbatched examples (x, y)",
        "nothing; the model is trained for an epoch of 4 steps",
    ),
    "mirror_it_loops.loop_b": ("as loop_a", "as loop_a"),
    "mirror_it_loops.loop_c": ("as loop_a", "as loop_a, with the penalty `model.losses` in the loss"),
    "mirror_it_loops.loop_d": ("as loop_a", "as loop_a"),
    "mirror_it_loops.loop_e": (
        "a strategy; a model of its scope; unbatched examples (x, y)",
        "a number from 0 to 1",
    ),
    "mirror_it_step.train_step": (
        "a strategy; a model of its scope; its optimizer; a distributed batch (x, y); the largest norm",
        "nothing; the model has made one step",
    ),
    "many_workers.reads": (
        '"OFF", "FILE" or "DATA"; a list of lists of examples; the global batch; a worker from 0; workers',
        "a list of examples",
    ),
    "many_workers.all_reduce": (
        "rank; workers, a power of two; an array [numbers], its own; exchange(partner, array) -> the partner's array",
        "an array [numbers], the sum",
    ),
    "many_workers.train": (
        "a folder to keep things in; tell(step, loss), steps from 1",
        "nothing; it can be started again with the same folder, in another process",
    ),
    "half_the_bits.in_float8": (
        "a float32 array; the scale; the largest numbers of earlier steps, float32 [steps], the oldest first",
        "the rounded float32 array, the next scale, the next history",
    ),
    "half_the_bits.smallest_batch": ("weights; activations of an example", "a whole number"),
    "half_the_bits_steps.train_step": (
        "a compiled mixed_float16 model; x [8, 6]; y [8]; the scale; good steps so far; steps until it doubles",
        "a tuple (scale, good steps); the model has made a step, or skipped it",
    ),
    "half_the_bits_overflow.first_overflow": (
        "a compiled mixed_float16 model, one layer after the other; x [8, 16]; y [8]; the scale",
        '(name of a layer, "forward" or "backward"), or None',
    ),
    "a_batch_in_slices.loop_1": (
        "a model with `weights`, one vector; an optimizer with step(model, gradient); a list of slices (x, y);"
        " gradients(model, x, y) -> gradient of the mean loss",
        "nothing; an update for every four slices, and one for what is left",
    ),
    "a_batch_in_slices.loop_2": ("as loop_1", "as loop_1"),
    "a_batch_in_slices.loop_3": ("as loop_1", "as loop_1"),
    "a_batch_in_slices.loop_4": ("as loop_1; clip(gradient) -> gradient", "as loop_1"),
    "a_batch_in_slices.loop_5": ("as loop_1; schedule(update from 0) -> rate", "as loop_1, with `optimizer.rate` set"),
    "a_batch_that_does_not_fit.accumulate": (
        "forward(slice) -> a loss, which holds its activations; backward(loss) -> a gradient; a list of slices",
        "the mean loss of all examples, and its gradient",
    ),
    "a_batch_that_does_not_fit.one_update": (
        "a model; an optimizer; x [10, 6, 5]; y [10, 6]; a mask [10, 6] of 0 and 1; lines of a slice; the largest norm",
        "nothing; the model has made one update",
    ),
    "all_of_it.which_stage": (
        "weights; peaks, a dictionary {devices: bytes on each of them}",
        "a pair: 0, 1, 2 or 3; bytes that are not shared",
    ),
    "all_of_it.next_step": (
        "a model of tokens; an optimizer; an endless iterator of (tokens [16], next tokens [16])",
        "a function step() -> examples that it took",
    ),
    "pay_with_time.recomputed": (
        "function(x, w, seed) -> y; draw() -> seed",
        "a function of x and w with the same result and gradients",
    ),
    "pay_with_time.segment": ("layers; MiB of a layer's input; MiB inside a layer", "layers of a segment"),
    "pay_with_time.attended": (
        "queries [length, width]; read(start, stop) -> keys and values of these places, [stop - start, width] each;"
        " rows, and places, at a time",
        "outputs [length, width]",
    ),
    "share_it_out_layers.whole_from": (
        "a shard [ceil(size / devices)]; the weight's shape; all_gather(shard) -> [devices x ceil(size / devices)];"
        " reduce_scatter(such a row) -> the shard of the sum",
        "the weight, whose gradient goes to the shard",
    ),
    "share_it_out_layers.mended": (
        "a shard [n / devices] of each device; a moment of each; a gradient [n] of each; examples of each;"
        " the largest norm; the rate; a wire with reduce_scatter(arrays) and all_reduce(values)",
        "a tuple (list of shards, list of moments)",
    ),
    "share_it_out_layers.prefetch": (
        "seconds of gathering each layer, a list; seconds of computing each; layers whole at a time",
        "when each gathering starts, a list",
    ),
    "cut_the_model.operators": ("all_reduce(x) -> the sum over replicas", "two functions of a tensor: copy, add"),
    "cut_the_model.order": (
        "a stage from 0; stages; micro-batches",
        'a list of ("forward" or "backward", micro-batch from 0)',
    ),
    "cut_the_model_pipelines.zero_bubble": (
        "a stage from 0; stages; micro-batches",
        'a list of ("forward", "inputs" or "weights", micro-batch from 0)',
    ),
    "when_it_goes_wrong.fault": (
        "a list of spans (start, end, thread, name), in ms",
        '"input", "op storm", "retracing", "another worker" or "compute"',
    ),
    "when_it_goes_wrong.together": (
        "an iterator of batches; all_reduce(number) -> the sum over workers; step(batch or None)",
        "nothing; all workers end together",
    ),
    "when_it_goes_wrong.clock_ahead": ("{step: seconds} of worker 0; {step: seconds} of worker 1", "seconds"),
    "when_it_goes_wrong.interval": ("seconds that saving takes; mean seconds between failures", "seconds"),
    "when_it_goes_wrong_replicas.corrupt": (
        "weights(step) -> float32 [replicas, n], which loads checkpoints; the last step",
        "a tuple (replica from 0, first step after which it differs), or None",
    ),
    "feed_a_language_model.faults": (
        'a dictionary of "tokens", "segments" and "positions", whole numbers [rows, places]; a gradient, an array;'
        " gradient(inputs, labels, weights) -> array",
        'a set of three of "mask", "positions", "seam" and "padding", or None',
    ),
    "feed_a_language_model.share": (
        "the number of a step; the worker, from 0; workers; rows of the global batch; rows in all",
        "an array of row numbers",
    ),
    "feed_a_language_model.mixture": (
        "rows of each source, a list; their shares, a list; how many rows are wanted; a seed",
        "an array of row numbers",
    ),
    "ask_a_server.asynchronous": (
        "weights [4]; gradient(worker, weights) -> array; seconds of each worker, a list; the rate; steps",
        "a tuple (weights [4], list of stalenesses)",
    ),
    "ask_a_server.push_once": (
        'a dictionary with "weights" [2], which is kept; the number of a step; its gradient [2]; the rate',
        "nothing; the dictionary is changed",
    ),
    "ask_a_server.table_step": (
        "servers with fetch(rows) and subtract(rows, values); rows of the table; users of the batch [12];"
        " gradient(vectors) -> array; the rate",
        "nothing; the servers' rows are changed",
    ),
    "choose_it.halving": (
        "train(trial, epochs) -> loss, which goes on where it stopped; trials; epochs in all",
        "the number of a trial, from 0",
    ),
    "choose_it.expected_gain": ("gains [trials]; the standard deviation of seeds", "a number"),
    "choose_it.best_rates": (
        "train(batch, rate, seed) -> loss or nan; batches, a list; the rate to begin with",
        "{batch: (best rate, mean loss of seeds 0, 1, 2)}",
    ),
    "shrink_it.grouped": (
        "a matrix [rows, columns]; bits; rows of a group",
        "a tuple (int8 [rows, columns], scales [groups, columns])",
    ),
    "hand_it_on.attend": (
        "new queries [readers, tokens, heads, width]; their keys [readers, tokens, heads of keys, width]; their values;"
        " what the call before returned as the cache, or None",
        "a tuple (outputs like the queries, the cache: keys and values of all tokens so far)",
    ),
}
"""{exercise: what the function gets, in the order of its arguments and parted by ";", and what it returns}."""
