"""How the rows of a sequence are shared among ranks: not at all, or by Ulysses.

Every rank has an equal part of the rows through norms, products and gates. Around attention the
ranks exchange: each gets all rows of a part of the heads, and gives its mixtures back. (Ulysses:
Jacobs et al., 2023, arXiv 2309.14509.)
"""

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.functional import pad, scaled_dot_product_attention


class Sharing(Protocol):
    """One rank's part of a sequence."""

    def part(self, rows: torch.Tensor) -> torch.Tensor:
        """This rank's rows of (all rows, ...)."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention over all rows for this rank's own, all (own rows, heads, channels)."""

    def collect(self, own: torch.Tensor) -> torch.Tensor:
        """All rows of all ranks' (own rows, ...), at every rank."""


class Whole:
    """All rows are one rank's."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def part(self, rows: torch.Tensor) -> torch.Tensor:
        """All of them."""
        return rows

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention (rows, heads, channels)."""
        return _attend(query, key, value)

    def collect(self, own: torch.Tensor) -> torch.Tensor:
        """There are no others."""
        return own


class Ulysses:
    """A part of the rows, and in attention a part of the heads, of `group`.

    The last ranks' rows end in padding, up to equal parts: it asks like any row and nobody asks
    for its answers, and its keys and values are cut off.
    """

    def __init__(self, rows: int, group: Any) -> None:
        self._group = group
        self._ranks = dist.get_world_size(group)
        self._place = dist.get_rank(group)
        self._rows = rows
        self._own = -(-rows // self._ranks)

    def part(self, rows: torch.Tensor) -> torch.Tensor:
        """This rank's rows, and padding of zeros behind the last."""
        first = self._place * self._own
        own = rows[first : first + self._own]
        missing = self._own - own.shape[0]
        return pad(own, (0, 0) * (own.dim() - 1) + (0, missing)) if missing else own

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention over all ranks' rows for this rank's own, all (own rows, heads, channels)."""
        ranks, own = self._ranks, self._own
        heads, channels = query.shape[1] // ranks, query.shape[2]
        sent = query.new_empty((ranks, own, 3, heads, channels))
        for place, one in enumerate((query, key, value)):
            sent[:, :, place] = one.view(own, ranks, heads, channels).transpose(0, 1)
        got = self._exchange(sent).flatten(0, 1)  # (all rows, 3, heads / ranks, channels)
        valid = got[: self._rows]
        mixed = _attend(got[:, 0], valid[:, 1], valid[:, 2])
        back = self._exchange(mixed.reshape(ranks, own, heads, channels))
        return back.transpose(0, 1).flatten(1, 2)

    def collect(self, own: torch.Tensor) -> torch.Tensor:
        """All rows, without the padding."""
        every = own.new_empty((self._ranks * self._own, *own.shape[1:]))
        dist.all_gather_into_tensor(every, own.contiguous(), group=self._group)
        return every[: self._rows]

    def _exchange(self, sent: torch.Tensor) -> torch.Tensor:
        """The i-th part of `sent` goes to rank i; what came from rank i is the i-th of the rest."""
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent.contiguous(), group=self._group)
        return got


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """(rows, heads, channels) in the order of axes that the products give and take."""
    query, key, value = (one[None].transpose(1, 2) for one in (query, key, value))
    return scaled_dot_product_attention(query, key, value).transpose(1, 2)[0]
