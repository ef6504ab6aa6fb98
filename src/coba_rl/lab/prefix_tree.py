"""A step's rollouts as one prefix tree a prompt, every token of it read once.

Axes: `_N` tokens that are read (prompt tokens and inner nodes of the trees), `_E` edges (a token predicted after a
node), `_T` tokens of all completions, end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_BLOCK_TOKENS = 64  # a longer block wastes attention on other prompts, a shorter one time on calls


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """Tokens that are read, and the tokens that are predicted after them.

    Every prompt's tokens are consecutive, and a node's descendants come right after it.
    """

    token_N: np.ndarray
    depth_N: np.ndarray
    """Tokens before this one in its sequence."""
    end_N: np.ndarray
    """Position after the token's last descendant."""
    source_E: np.ndarray
    """Position of the node after which the edge's token is predicted."""
    target_E: np.ndarray
    """The predicted token."""
    edge_T: np.ndarray
    """Edge of each token of each completion."""
    completion_T: np.ndarray
    """Completion of each token."""

    def sum_by_edge(self, weight_U: np.ndarray) -> np.ndarray:
        """(E,) sum of the weights (U,) of the completions that pass each edge."""
        return np.bincount(self.edge_T, weight_U[self.completion_T])

    def blocks(self) -> list[slice]:
        """Consecutive prompts, as many as make a block worth a call."""
        starts = [0]
        for start in np.flatnonzero(self.depth_N == 0).tolist():
            if start - starts[-1] >= _BLOCK_TOKENS:
                starts.append(start)
        return list(map(slice, starts, [*starts[1:], len(self.token_N)]))

    def visible(self, block: slice) -> np.ndarray:
        """(n, n) of a block's tokens: True where the second is at or above the first in its tree.

        Example:
            >>> tree = build_tree([[7, 8]], np.array([0, 0]), [(1, 2), (3, 2)])
            >>> tree.visible(slice(0, 4)).astype(int).tolist()
            [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
        """
        position = np.arange(block.start, block.stop)
        return (position <= position[:, None]) & (position[:, None] < self.end_N[block])


def build_tree(
    prompts: Sequence[Sequence[int]], prompt_U: np.ndarray, completions: Sequence[Sequence[int]]
) -> PrefixTree:
    """Merge the prefixes that neighbouring completions of a prompt share; completions in order share all they can.

    Args:
        prompts: P lists of token ids, none empty.
        prompt_U: (U,) prompt of each completion, ascending.
        completions: U token lists, none empty.

    Example:
        >>> tree = build_tree([[7, 8]], np.array([0, 0]), [(1, 2), (1, 3)])
        >>> tree.token_N.tolist(), tree.depth_N.tolist(), tree.end_N.tolist()
        ([7, 8, 1], [0, 1, 2], [3, 3, 3])
        >>> tree.source_E.tolist(), tree.target_E.tolist(), tree.edge_T.tolist()
        ([1, 2, 2], [1, 2, 3], [0, 1, 0, 2])
    """
    nodes: list[tuple[int, int, int]] = []  # token, depth, parent
    edges: list[tuple[int, int]] = []  # source, target
    edge_T: list[int] = []
    current, before, path, passed = -1, [], [], []  # the last sequence, its nodes, and its edges
    for row, completion in zip(prompt_U.tolist(), completions, strict=True):
        prompt, sequence = prompts[row], [*prompts[row], *completion]
        shared = _shared(before, sequence) if row == current else 0
        del path[shared:], passed[max(shared - len(prompt), 0) :]
        for depth in range(shared, len(sequence)):
            if depth > len(path):  # the last token of a sequence becomes a node when another goes on from it
                nodes.append((sequence[depth - 1], depth - 1, path[-1] if path else -1))
                path.append(len(nodes) - 1)
            if depth >= len(prompt):
                passed.append(len(edges))
                edges.append((path[-1], sequence[depth]))
        edge_T += passed
        current, before = row, sequence
    token_N, depth_N, parent_N = np.array(nodes).T
    completion_T = np.repeat(np.arange(len(completions)), list(map(len, completions)))
    return PrefixTree(token_N, depth_N, _ends(parent_N), *np.array(edges).T, np.array(edge_T), completion_T)


def _shared(one: list[int], other: list[int]) -> int:
    """How many tokens two sequences have in common at their start."""
    differ = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def _ends(parent_N: np.ndarray) -> np.ndarray:
    """Position after each node's last descendant, where descendants come right after it."""
    end, parents = list(range(1, len(parent_N) + 1)), parent_N.tolist()
    for node in range(len(parents) - 1, -1, -1):
        if parents[node] >= 0:
            end[parents[node]] = max(end[parents[node]], end[node])
    return np.array(end)
