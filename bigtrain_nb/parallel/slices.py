"""Weights of which each replica has a slice: read and written whole, and their gradients in a step."""

from bigtrain_nb.common.keras_gaps import innermost
from bigtrain_nb.common.quiet import keras, tf

_NEED_WHOLE_WEIGHTS = ("Adafactor", "Lamb", "Muon")


def is_cut(model):
    """Return whether replicas have slices of some of the model's weights."""
    return any(_axis_of(variable) is not None for variable in model.weights)


def whole_value(variable):
    """Return a variable's value as NumPy, put together if it is cut; then all workers must ask for it."""
    axis = _axis_of(variable)
    if axis is None:
        return variable.numpy()

    slices = {}
    for replica, copy in copies(variable):
        slices[replica] = tf.identity(copy)

    def own(context):
        return slices[context.replica_id_in_sync_group]

    strategy = variable.value.distribute_strategy
    values = strategy.experimental_distribute_values_from_function(own)
    return strategy.gather(values, axis).numpy()


def assign_whole(variable, value):
    """Give a variable a value; if it is cut, each replica takes its slice."""
    axis = _axis_of(variable)
    if axis is None:
        variable.assign(value)
        return

    replicas = variable.value.distribute_strategy.num_replicas_in_sync
    value = tf.cast(tf.convert_to_tensor(value), variable.dtype)
    slices = tf.split(value, replicas, axis)
    for replica, copy in copies(variable):
        copy.assign(slices[replica])


def copies(variable):
    """Return (replica, its copy of a variable) for the replicas of this process; none without a strategy."""
    if not hasattr(variable.value, "values"):
        return []

    def number(context):
        return context.replica_id_in_sync_group

    strategy = variable.value.distribute_strategy
    numbers = strategy.experimental_distribute_values_from_function(number)
    local_results = strategy.experimental_local_results
    return list(zip(local_results(numbers), local_results(variable.value), strict=True))


def save_whole(saveable, variables):
    """Let a layer or an optimizer write whole values of its ``variables`` to files, and cut what it reads."""

    def save_own_variables(store):
        for index, variable in enumerate(variables):
            store[str(index)] = whole_value(variable)

    def load_own_variables(store):
        for index, variable in enumerate(variables):
            assign_whole(variable, store[str(index)])

    saveable.save_own_variables = save_own_variables
    saveable.load_own_variables = load_own_variables


def save_slots_whole(model):
    """Let the optimizer of a model that is cut save the state of each weight whole too, and cut what it loads."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not is_cut(model):
        return
    for weight in model.trainable_variables:
        prefix = weight.path.replace("/", "_") + "_"  # by which Keras names what an optimizer keeps for a weight
        for slot in optimizer.variables:
            if slot.name.startswith(prefix) and slot.shape == weight.shape:
                slot.cut_axis = _axis_of(weight)
    save_whole(optimizer, optimizer.variables)
    save_whole(innermost(optimizer), innermost(optimizer).variables)


def _axis_of(variable):
    return getattr(variable, "cut_axis", None)


# A step: the whole batch for each replica, and gradients of slices, which stay where they are


def whole_batch(data):
    """Return the global batch, from the replicas' shares of it: a structure of tensors, joined along the first axis."""
    context = tf.distribute.get_replica_context()

    def gather(value):
        return None if value is None else context.all_gather(tf.identity(value), axis=0)

    return keras.tree.map_structure(gather, data)


def own_share(outputs, data):
    """Return the rows of ``outputs``, of the global batch, that belong to ``data``, this replica's share of it."""
    context = tf.distribute.get_replica_context()
    rows = tf.shape(tf.nest.flatten(data)[0])[:1]
    rows_of_each = context.all_gather(rows, axis=0)
    start = tf.reduce_sum(rows_of_each[: context.replica_id_in_sync_group])
    end = start + rows[0]
    return tf.nest.map_structure(lambda output: output[start:end], outputs)


def set_apart(step, variables):
    """Part a step's gradients: return those of slices, and the step with the others and the slices' sum of squares."""
    slices = {}
    others = {}
    for index, gradient in step["gradients"].items():
        if _axis_of(variables[index]) is None:
            others[index] = gradient
        else:
            slices[index] = gradient
    return slices, {**step, "gradients": others, "squares": _sum_of_squares(slices)}


def put_back(step, slices, optimizer):
    """Return the step, reduced, with the gradients of slices; clip all of them by the norm of the whole gradient."""
    _refuse(optimizer)
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    squares = step["squares"] * replicas  # `step` has their mean
    gradients = dict(step["gradients"])

    # What is not finite on one replica is so on all: they skip a step of loss scaling together
    for index, gradient in slices.items():
        not_a_number = tf.constant(float("nan"), gradient.dtype)
        gradients[index] = tf.where(tf.math.is_finite(squares), gradient, not_a_number)

    global_clipnorm = innermost(optimizer).global_clipnorm
    if global_clipnorm:
        norm = tf.sqrt(squares + _sum_of_squares(step["gradients"]))
        limit = optimizer.scale_loss(
            tf.constant(global_clipnorm, tf.float32)
        )  # the gradients are scaled as the loss is
        factor = tf.minimum(1.0, tf.math.divide_no_nan(limit, norm))
        for index, gradient in gradients.items():
            gradients[index] = gradient * tf.cast(factor, gradient.dtype)
    return {**step, "gradients": gradients}


def _sum_of_squares(gradients):
    total = tf.constant(0.0)
    for gradient in gradients.values():
        total += tf.reduce_sum(tf.square(tf.cast(gradient, tf.float32)))
    return total


def _refuse(optimizer):
    kind = type(innermost(optimizer)).__name__
    if kind in _NEED_WHOLE_WEIGHTS:
        raise ValueError(
            f"{kind} does not treat each number of a weight by itself, so it cannot update a slice of one: use Adam,"
            " AdamW, SGD or another that does, or no tensor_parallel"
        )
    if innermost(optimizer).clipnorm:
        raise ValueError("clipnorm takes the norm of each weight, and a replica has a slice of it: use global_clipnorm")
