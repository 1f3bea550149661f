"""Exercises of notebook 08, "Share it out": a step with sharded state, and what rounding takes from a message."""

import numpy as np

from bigtrain_nb import tf
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


def sharded_step(weights, gradients, moments, rate, wire):
    devices = len(gradients)
    size = -(-len(weights) // devices)
    zeros = size * devices - len(weights)
    padded = [np.pad(gradient, (0, zeros)) for gradient in gradients]
    row = np.pad(weights, (0, zeros))

    new_moments, parts = [], []
    for device, total in enumerate(wire.reduce_scatter(padded)):
        moment = 0.9 * moments[device] + total / devices
        part = row[device * size : (device + 1) * size] - rate * moment
        new_moments.append(moment)
        parts.append(part)
    return wire.all_gather(parts)[: len(weights)], new_moments


class _Wire:
    """What sends numbers between devices, and counts how many each of them sends."""

    def __init__(self, devices):
        self.devices, self.sent = devices, 0.0

    def reduce_scatter(self, arrays):
        total = np.sum(arrays, axis=0)
        if len(total) % self.devices:
            raise ValueError(f"{len(total)} numbers cannot be cut into {self.devices} equal parts: fill up with zeros")
        self.sent += len(total) * (self.devices - 1) / self.devices
        return np.split(total, self.devices)

    def all_gather(self, parts):
        whole = np.concatenate(parts)
        self.sent += len(whole) * (self.devices - 1) / self.devices
        return whole

    def all_reduce(self, arrays):
        total = np.sum(arrays, axis=0)
        self.sent += 2 * len(total) * (self.devices - 1) / self.devices
        return total


@exercise(sharded_step, minutes=20, difficulty=4)
def _check_sharded_step(answer):
    """The order is: fill up with zeros, reduce-scatter the gradients, let each device update its own part of the
    weights with its own moment, all-gather the parts, cut the zeros off. `reduce_scatter` gives sums.
    """
    random = np.random.default_rng(2)
    for devices, count in [(2, 10), (4, 10), (3, 7)]:
        size = -(-count // devices)
        weights = random.normal(size=count)
        plain, plain_moment = weights.copy(), np.zeros(count)
        moments = [np.zeros(size) for _ in range(devices)]
        wire = _Wire(devices)
        told = f"{devices} devices, {count} weights"
        for step in range(3):
            gradients = [random.normal(size=count) for _ in range(devices)]
            plain_moment = 0.9 * plain_moment + np.mean(gradients, axis=0)
            plain = plain - 0.1 * plain_moment
            before = weights
            answered = answer(weights, gradients, moments, 0.1, wire)
            weights, moments = answered
            held = [len(moment) for moment in moments]
            if held != [size] * devices:
                raise Wrong(f"{told}: each device should hold {size} numbers of the moment, they hold {held}")
            if np.shape(weights) != (count,):
                raise Wrong(f"{told}: expected one vector of {count} weights, got the shape {np.shape(weights)}")
            if step == 0 and np.allclose(weights - before, devices * (plain - before)):
                raise Wrong(f"{told}: the weights move {devices} times too far: is it the mean of the gradients?")
            expect(np.asarray(weights), plain, f"{told}: the weights after step {step + 1}", 1e-6)
        allowed = 3 * 2 * size * devices * (devices - 1) / devices
        if wire.sent > allowed + 1e-6:
            sent = f"each device sent {wire.sent:.0f} numbers in 3 steps"
            raise Wrong(f"{told}: {sent}, an all-reduce sends {allowed:.0f}")


@_check_sharded_step.refuses("2 devices, 10 weights: the weights move 2 times too far")
def _takes_the_sum(weights, gradients, moments, rate, wire):
    devices = len(gradients)
    return sharded_step(weights, [devices * gradient for gradient in gradients], moments, rate, wire)


@_check_sharded_step.refuses("4 devices, 10 weights: expected one vector of 10 weights, got the shape (12,)")
def _leaves_the_zeros_on(weights, gradients, moments, rate, wire):
    size = -(-len(weights) // len(gradients))
    new, new_moments = sharded_step(weights, gradients, moments, rate, wire)
    return np.pad(new, (0, size * len(gradients) - len(new))), new_moments


@_check_sharded_step.refuses("the weights after step 2")
def _forgets_the_moment(weights, gradients, moments, rate, wire):
    return sharded_step(weights, gradients, [0 * moment for moment in moments], rate, wire)


@_check_sharded_step.refuses("numbers in 3 steps, an all-reduce sends")
def _reduces_all(weights, gradients, moments, rate, wire):
    total = wire.all_reduce(gradients)
    everywhere = [total / len(gradients)] * len(gradients)
    return sharded_step(weights, everywhere, moments, rate, wire)


@_check_sharded_step.refuses("each device should hold 5 numbers of the moment, they hold [10, 10]")
def _keeps_the_whole_moment(weights, gradients, moments, rate, wire):
    mean = wire.all_reduce(gradients) / len(gradients)
    whole = [np.zeros(len(weights)) + mean for _ in gradients]
    return weights - rate * mean, whole


def send(gradient, left, in_16_bits):
    wanted = gradient + left
    message = in_16_bits(wanted)
    return message, wanted - message


def _bfloat16(array):
    return tf.cast(tf.cast(tf.constant(array, tf.float32), tf.bfloat16), tf.float32).numpy()


@exercise(send, minutes=5, difficulty=2)
def _check_send(answer):
    """What rounding took away from this message must be in the next one. So add first what was left over, then round,
    then see what is left over now.
    """
    gradient = np.array([1.001, -0.3333, 3e-4, 100.3], np.float32)
    left = np.zeros(4, np.float32)
    total = np.zeros(4)
    for step in range(400):
        answered = answer(gradient, left, _bfloat16)
        message, left = answered
        if not np.array_equal(_bfloat16(message), np.asarray(message, np.float32)):
            raise Wrong(f"step {step + 1}: the message {message} has more than 16 bits: send in_16_bits(...)")
        total += message
    told = "the mean of 400 messages with the same gradient, which what was left over corrects"
    expect(total / 400, gradient.astype(float), told, 1e-4)


@_check_send.refuses("the mean of 400 messages with the same gradient, which what was left over corrects: expected")
def _forgets_what_is_left(gradient, left, in_16_bits):
    return in_16_bits(gradient), left


@_check_send.refuses("has more than 16 bits: send in_16_bits(...)")
def _adds_after_rounding(gradient, left, in_16_bits):
    message = in_16_bits(gradient)
    return message + left, gradient - message


@_check_send.refuses("the mean of 400 messages with the same gradient, which what was left over corrects: expected")
def _compares_with_the_gradient_alone(gradient, left, in_16_bits):
    message = in_16_bits(gradient + left)
    return message, gradient - message
