"""A step's rollouts as one prefix tree a prompt, packed into rows for a single forward pass.

Axes: `_N` tokens of the pack (prompt tokens and inner nodes of the trees), `_E` edges (a token predicted after a
node), `_R` rows and `_L` positions of the packed pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ROW_LENGTH = 192  # a longer row wastes attention on other prompts, a shorter one on padding


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """Tokens that are read, and the tokens that are predicted after them.

    Every prompt's tokens and inner nodes are consecutive, parents before children.
    """

    token_N: np.ndarray
    parent_N: np.ndarray
    """Position of the token before; −1 at the start of a prompt."""
    depth_N: np.ndarray
    """Tokens before this one in its sequence."""
    prompt_N: np.ndarray
    """Which prompt a token belongs to, ascending."""
    source_E: np.ndarray
    """Position of the node after which the edge's token is predicted."""
    target_E: np.ndarray
    """The predicted token."""
    weight_E: np.ndarray
    """Sum of the weights of the rollouts that pass the edge."""


def build_tree(
    prompts: Sequence[Sequence[int]],
    prompt_U: np.ndarray,
    completions: Sequence[Sequence[int]],
    weight_U: np.ndarray,
) -> PrefixTree:
    """Merge the shared prefixes of each prompt's completions, so that Σ_U weight·log π(completion) is Σ_E weight·log π.

    Args:
        prompts: P lists of token ids.
        prompt_U: (U,) prompt of each completion, ascending.
        completions: U token lists, none empty; those of one prompt differ.
        weight_U: (U,) weight of each completion's log probability.

    Example:
        >>> tree = build_tree([[7, 8]], np.array([0, 0]), [(1, 2), (1, 3)], np.array([0.5, -1.0]))
        >>> tree.token_N.tolist(), tree.parent_N.tolist()
        ([7, 8, 1], [-1, 0, 1])
        >>> list(zip(tree.source_E.tolist(), tree.target_E.tolist(), tree.weight_E.tolist()))
        [(1, 1, -0.5), (2, 2, 0.5), (2, 3, -1.0)]
    """
    nodes: list[tuple[int, int, int, int]] = []  # token, parent, depth, prompt
    child: dict[tuple[int, int], int] = {}
    weights: defaultdict[tuple[int, int], float] = defaultdict(float)
    for row, completion, weight in zip(prompt_U.tolist(), completions, weight_U.tolist(), strict=True):
        node = -1 - row  # below 0: before the first token of a prompt
        for depth, token in enumerate([*prompts[row], *completion[:-1]]):
            edge = (node, token)
            if depth >= len(prompts[row]):
                weights[edge] += weight
            if edge not in child:
                child[edge] = len(nodes)
                nodes.append((token, max(node, -1), depth, row))
            node = child[edge]
        weights[node, completion[-1]] += weight
    token_N, parent_N, depth_N, prompt_N = np.array(nodes).T
    source_E, target_E = np.array(list(weights)).T
    weight_E = np.array(list(weights.values()))
    return PrefixTree(token_N, parent_N, depth_N, prompt_N, source_E, target_E, weight_E)


@dataclass(frozen=True, eq=False)
class PackedRows:
    """A `PrefixTree` laid out as rows; positions that hold nothing see only themselves."""

    token_RL: np.ndarray
    depth_RL: np.ndarray
    visible_RLL: np.ndarray
    """True where the token at the last axis is at or above the one at the axis before in its tree."""
    flat_N: np.ndarray
    """Position of each token in the flattened rows."""


def pack(tree: PrefixTree, row_length: int = _ROW_LENGTH) -> PackedRows:
    """Put whole prompts side by side until a row is full; the attention mask keeps them apart.

    Example:
        >>> tree = build_tree([[7, 8]], np.array([0, 0]), [(1, 2), (1, 3)], np.array([0.5, -1.0]))
        >>> pack(tree, row_length=4).visible_RLL[0].astype(int).tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    """
    sizes = np.bincount(tree.prompt_N)
    length = max(row_length, int(sizes.max()))
    row, column = _first_fit(sizes, length)
    offset = np.concatenate([[0], np.cumsum(sizes)])
    inside = np.arange(len(tree.token_N)) - offset[tree.prompt_N]
    row_N, column_N = row[tree.prompt_N], column[tree.prompt_N] + inside
    shape = (int(row.max()) + 1, length)
    token, depth = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    token[row_N, column_N], depth[row_N, column_N] = tree.token_N, tree.depth_N
    visible = np.zeros((*shape, length), dtype=bool)
    visible[:, np.arange(length), np.arange(length)] = True
    for level in range(1, int(tree.depth_N.max()) + 1):
        here = np.flatnonzero(tree.depth_N == level)
        visible[row_N[here], column_N[here]] |= visible[row_N[here], column_N[tree.parent_N[here]]]
    return PackedRows(token, depth, visible, row_N * length + column_N)


def _first_fit(sizes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and first column of each prompt: largest first, each into the first row with room."""
    row, column, filled = np.zeros(len(sizes), dtype=np.int64), np.zeros(len(sizes), dtype=np.int64), []
    for prompt in np.argsort(-sizes, kind="stable"):
        chosen = next((r for r, n in enumerate(filled) if n + sizes[prompt] <= length), len(filled))
        if chosen == len(filled):
            filled.append(0)
        row[prompt], column[prompt] = chosen, filled[chosen]
        filled[chosen] += int(sizes[prompt])
    return row, column
