"""Exercises of notebook 14, "Shrink it, hand it on": integer weights."""

import warnings

import numpy as np

from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


def grouped(matrix, bits, group):
    most = 2 ** (bits - 1) - 1
    values = np.zeros(matrix.shape, np.int8)
    scales = []
    for start in range(0, len(matrix), group):
        part = matrix[start : start + group]
        largest = np.abs(part).max(axis=0)
        scale = np.where(largest > 0, largest / most, 1)
        values[start : start + group] = np.round(part / scale)
        scales.append(scale)
    return values, np.array(scales)


@exercise(
    grouped,
    takes="a matrix [rows, columns]; bits; rows of a group",
    returns="a tuple (int8 [rows, columns], scales [groups, columns])",
    minutes=15,
    difficulty=3,
)
def _check_grouped(answer):
    """With b bits the integers run from -(2^(b-1) - 1) to 2^(b-1) - 1. Map the largest absolute weight of a column in a
    group to the last of them; that gives the scale. Rounding then errs by at most half a scale. The last group may have
    fewer rows, and a column may be all zeros: whatever its scale is, avoid 0 / 0.
    """
    random = np.random.default_rng(6)
    for rows, columns, bits, group in [(8, 3, 8, 8), (12, 5, 8, 4), (70, 6, 4, 32)]:
        matrix = random.normal(size=(rows, columns)) * np.geomspace(0.01, 10, columns)
        matrix[: rows // 2] *= 0.1
        matrix[:, 1] = 0
        told = f"a matrix [{rows}, {columns}], {bits} bits, groups of {group} rows"
        with np.errstate(divide="ignore", invalid="warn"), warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            answered = answer(matrix.copy(), bits, group)
        if any("in cast" in str(warning.message) for warning in noted):  # NaN becomes 0 here, another value elsewhere
            raise Wrong(f"{told}: NaN became an integer; look at the column of zeros")
        if not isinstance(answered, tuple) or len(answered) != 2:
            raise Wrong(f"{told}: expected integers and scales, got {answered!r}")
        values, scales = answered
        if getattr(values, "dtype", None) != np.int8:
            raise Wrong(f"{told}: expected integers of dtype int8, got {getattr(values, 'dtype', type(values))}")
        groups = -(-rows // group)
        expect(np.shape(values), (rows, columns), f"{told}: the shape of the integers")
        expect(np.shape(scales), (groups, columns), f"{told}: the shape of the scales")
        _check_sizes(told, matrix, values, np.asarray(scales), bits, group)


def _check_sizes(told, matrix, values, scales, bits, group):
    most = 2 ** (bits - 1) - 1
    if not np.isfinite(scales).all():
        raise Wrong(f"{told}: a scale is not finite; look at the column of zeros")
    if np.abs(values.astype(int)).max() > most:
        raise Wrong(f"{told}: integers must be from -{most} to {most}, got {values.min()} to {values.max()}")
    of_row = np.repeat(np.arange(len(scales)), group)[: len(matrix)]
    error = np.abs(values * scales[of_row] - matrix)
    allowed = np.zeros(matrix.shape)
    for row in range(len(matrix)):
        allowed[row] = np.abs(matrix[of_row == of_row[row]]).max(axis=0) / most / 2
    if (error > allowed + 1e-9).any():
        worst = np.unravel_index(np.argmax(error - allowed), error.shape)
        raise Wrong(
            f"{told}: the weight {matrix[worst]:.4g} is restored with an error of {error[worst]:.2g}; half the scale of"
            f" its column and group is {allowed[worst]:.2g}"
        )


@_check_grouped.refuses("is restored with an error of")
def _one_scale_for_all(matrix, bits, group):
    most = 2 ** (bits - 1) - 1
    scale = np.abs(matrix).max() / most
    groups = -(-len(matrix) // group)
    return np.round(matrix / scale).astype(np.int8), np.full((groups, matrix.shape[1]), scale)


@_check_grouped.refuses("is restored with an error of")
def _cuts_off(matrix, bits, group):
    scales = grouped(matrix, bits, group)[1]
    return (matrix / np.repeat(scales, group, axis=0)[: len(matrix)]).astype(np.int8), scales


@_check_grouped.refuses("a scale is not finite; look at the column of zeros")
def _divides_by_zero(matrix, bits, group):
    values, scales = grouped(matrix, bits, group)
    return values, np.where(np.arange(matrix.shape[1]) == 1, np.nan, scales)


@_check_grouped.refuses("NaN became an integer; look at the column of zeros")
def _rounds_nan(matrix, bits, group):
    values, scales = grouped(matrix, bits, group)
    zeros = scales * (np.abs(matrix).max(axis=0) > 0)
    return np.round(matrix / np.repeat(zeros, group, axis=0)[: len(matrix)]).astype(np.int8), zeros


@_check_grouped.refuses("integers must be from -127 to 127, got -128")
def _uses_all_of_the_bits(matrix, bits, group):
    values, scales = grouped(matrix, bits, group)
    return np.where(values == -(2 ** (bits - 1) - 1), values - 1, values).astype(np.int8), scales


@_check_grouped.refuses("8 bits, groups of 4 rows: the shape of the scales: expected (3, 5), got (1, 5)")
def _forgets_the_groups(matrix, bits, group):
    return grouped(matrix, bits, len(matrix))
