"""Documents of tokens packed into rows of one length, and read by the number of a row. Imports no TensorFlow.

Documents differ in length, and a batch is a rectangle. Padding each document wastes most of the batch; cutting the
stream of all documents into rows wastes nothing, but cuts documents. Best fit puts each document, the longest first,
into the row with the least room that is enough (D. S. Johnson, "Near-optimal bin packing algorithms", 1973; for
language models: Ding et al. 2024, "Fewer Truncations Improve Language Modeling").

The plan depends on the lengths alone. So which documents a row holds is known before a token is read, and order,
mixture, where a training resumes and what each worker reads are arrays of row numbers.
"""

from typing import Any

import numpy as np

from bigtrain_nb.common.checks import integer

LARGEST = np.iinfo(np.int32).max


class TokenRows:
    """Rows of ``length`` tokens, filled with whole documents by best fit.

    ``tokens``: the tokens of all documents one after the other, an array of integers [tokens], such as a
    `np.memmap`, which is read as rows are asked for. ``lengths``: how many of them each document has, integers
    [documents]. A document longer than ``length`` is cut into pieces of ``length``, and the last piece is packed like a
    document; empty documents take no place. The same lengths give the same rows.

    ``vocabulary`` is how many different tokens there are. Say it where tokens are stored in 16 bits: one above 65,535
    became another one when it was stored, and nothing shows it.

    ``len(rows)`` is the number of rows, ``rows.padding`` the share of their places that holds no token,
    ``rows.max_segments`` the largest number of segments in a row.
    ``rows[numbers]``, of an integer or an array of them [rows], is a dictionary of int32 [rows, length]:

    - "tokens", 0 where there is none;
    - "segments", from 1 for the first document of a row, 0 where there is none: attention must stay within a segment;
    - "positions", from 0 in each document.

    The next token of a document's last one is in another document: give it the weight 0. Planning takes about a second
    for a million documents, and keeps 12 bytes a piece and 8 a row.

    Raises ValueError for tokens or lengths of another kind, for lengths that do not add up to the tokens, for a
    ``vocabulary`` that their dtype cannot hold, and, when a row is read, for a token below 0 or not below
    ``vocabulary``; IndexError for a row that does not exist.

    Example::

        tokens = list(range(1, 11))  # documents of 4, 3, 1 and 2 tokens
        rows = bt.TokenRows(tokens, [4, 3, 1, 2], length=5)
        print(len(rows), rows[[0]]["tokens"], rows[[0]]["segments"])  # 2 [[1 2 3 4 8]] [[1 1 1 1 2]]
    """

    def __init__(self, tokens: Any, lengths: Any, length: int, *, vocabulary: int | None = None):
        self.length = integer("length", length, 1)
        self.vocabulary = LARGEST if vocabulary is None else integer("vocabulary", vocabulary, 1, LARGEST)
        self.tokens = _whole_numbers("tokens", tokens)
        lengths = _whole_numbers("lengths", lengths)
        self._check(lengths)

        starts, sizes = _pieces(lengths, self.length)
        rows = _best_fit(sizes, self.length)
        order = np.argsort(rows, kind="stable")
        self._starts = starts[order]
        self._sizes = sizes[order].astype(np.int32)
        self._first = np.searchsorted(rows[order], np.arange(rows.max(initial=-1) + 2))
        """The first piece of each row, and one more: where the last row ends."""

    def __len__(self):
        return len(self._first) - 1

    @property
    def padding(self) -> float:
        places = len(self) * self.length
        return 1 - len(self.tokens) / places if places else 0.0

    @property
    def max_segments(self) -> int:
        return int(np.diff(self._first).max(initial=0))

    def __getitem__(self, numbers: Any) -> dict[str, np.ndarray]:
        numbers = self._row_numbers(numbers)
        first = self._first[numbers]
        pieces_of_row = self._first[numbers + 1] - first
        pieces = _runs(first, pieces_of_row)
        sizes = self._sizes[pieces]

        # Where each piece begins: in its row, and in the rows laid end to end
        begins = np.cumsum(sizes) - sizes
        first_of_row = np.cumsum(pieces_of_row) - pieces_of_row
        columns = begins - np.repeat(begins[first_of_row], pieces_of_row)
        places = np.repeat(np.arange(len(numbers)) * self.length, pieces_of_row) + columns

        place_of_token = _runs(places, sizes)
        found = self._checked(self.tokens[_runs(self._starts[pieces], sizes)])
        segments = _runs(np.ones_like(pieces_of_row), pieces_of_row)
        return {
            "tokens": self._row_of(place_of_token, found, len(numbers)),
            "segments": self._row_of(place_of_token, np.repeat(segments, sizes), len(numbers)),
            "positions": self._row_of(place_of_token, _runs(np.zeros_like(sizes), sizes), len(numbers)),
        }

    def __repr__(self):
        padding = f"{100 * self.padding:.2g} % padding"
        return f"TokenRows: {len(self):,} rows of {self.length} tokens, {len(self.tokens):,} tokens, {padding}"

    def _check(self, lengths):
        if len(lengths) and lengths.min() < 0:
            raise ValueError(f"lengths={lengths!r:.99} must be 0 or more tokens each")
        if (total := int(lengths.sum(dtype=np.int64))) != len(self.tokens):
            raise ValueError(
                f"the lengths add up to {total:,} tokens, and there are {len(self.tokens):,}: give one length for each"
                " document, in the order of the tokens"
            )
        if self.vocabulary < LARGEST and np.iinfo(self.tokens.dtype).max < self.vocabulary - 1:
            raise ValueError(
                f"tokens of {self.tokens.dtype} cannot hold a vocabulary of {self.vocabulary:,}: those above"
                f" {np.iinfo(self.tokens.dtype).max:,} have become others. Store them as uint32"
            )

    def _row_numbers(self, numbers):
        numbers = np.atleast_1d(_whole_numbers("numbers", numbers, dimensions=(0, 1))).astype(np.int64)
        wrong = numbers[(numbers < 0) | (numbers >= len(self))]
        if len(wrong):
            raise IndexError(f"row {wrong[0]} does not exist: there are {len(self):,}, from 0 on")
        return numbers

    def _checked(self, tokens):
        if len(tokens) and not (tokens.min() >= 0 and tokens.max() < self.vocabulary):
            raise ValueError(
                f"tokens must be from 0 to below {self.vocabulary:,}, and here are some from {tokens.min():,} to"
                f" {tokens.max():,}: was another tokenizer used, or were they stored in too few bits?"
            )
        return tokens

    def _row_of(self, places, values, rows):
        filled = np.zeros(rows * self.length, np.int32)
        filled[places] = values
        return filled.reshape(rows, self.length)


def _whole_numbers(name, values, dimensions=(1,)):
    """Return ``values`` as an array, which a memmap stays."""
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    if array.size == 0 and array.dtype == float:  # an empty list
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim not in dimensions:
        raise ValueError(
            f"{name} must be an array of integers with {dimensions[-1]} dimension, not of {array.dtype} and shape"
            f" {array.shape}"
        )
    return array


def _pieces(lengths, longest):
    """Where each piece of a document starts in all tokens, and its size: documents longer than ``longest`` are cut."""
    lengths = lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    count = -(-lengths // longest)  # rounded up
    document = np.repeat(np.arange(len(lengths)), count)
    starts = (ends - lengths)[document] + longest * _runs(np.zeros_like(count), count)
    return starts, np.minimum(longest, ends[document] - starts)


def _best_fit(sizes, length):
    """Return the row of each piece. The longest come first, each into the row with the least room that is enough."""
    row_of_piece = np.empty(len(sizes), np.int64)
    rows_with_room = [[] for _ in range(length)]
    rooms = 0  # as a set of bits: bit r says that some row has room for r tokens
    rows = 0
    for piece in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[piece])
        enough = rooms >> size
        if enough:
            room = size + (enough & -enough).bit_length() - 1  # the lowest bit
            row = rows_with_room[room].pop()
            if not rows_with_room[room]:
                rooms ^= 1 << room
        else:
            room = length
            row = rows
            rows += 1
        left = room - size
        if left:
            rows_with_room[left].append(row)
            rooms |= 1 << left
        row_of_piece[piece] = row
    return row_of_piece


def _runs(starts, counts):
    """Whole numbers in runs: for each start, ``count`` of them, going up by one. [runs], [runs] -> [sum of counts]."""
    offsets = np.cumsum(counts) - counts
    return np.repeat(starts - offsets, counts) + np.arange(int(np.sum(counts)))
