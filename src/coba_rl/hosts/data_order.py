"""The order of the training data, so that a resumed run can say that it is another one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def order_of(prompts: Iterable[str | int]) -> str:
    """Digest of prompts in their order.

    Args:
        prompts: An id, or any text that tells prompts apart, for each row of the data.

    Returns:
        32 hexadecimal digits.

    Example:
        >>> order_of(["a", "b"]) == order_of(["b", "a"])
        False
    """
    digest = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        digest.update(f"{prompt!r}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def other_order(saved: str | None, now: str | None, *, amid_epoch: bool) -> list[str]:
    """A warning where a run goes on amid an epoch with data in another order.

    Args:
        saved: Digest in the checkpoint; None where the data have no order that can be read, as streams.
        now: Digest of this run's data.
        amid_epoch: Whether the checkpoint was saved before the end of an epoch.

    Example:
        >>> other_order("07", "07", amid_epoch=True), other_order("07", "3f", amid_epoch=False)
        ([], [])
    """
    if saved is None or now is None or saved == now or not amid_epoch:
        return []
    return [
        "The training data are other rows, or the same in another order, than when the checkpoint was saved amid an "
        "epoch: until that epoch ends, some prompts are visited twice and some not at all. Resume with the data as "
        "they were, or from a checkpoint at the end of an epoch, to visit each prompt once."
    ]
