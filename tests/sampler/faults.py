"""Faults that a rank of these tests has in it from its start: certain seeds set them off."""

from typing import Any

OTHER_NOISE, NO_MEMORY, DUMP, NOT_FINITE = 9001, 9002, 9003, 9004
FIGURES = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of "
    "which 3.25 GiB is free. Of the allocated memory 130.11 GiB is allocated by PyTorch."
)


def plant(rank: int) -> None:
    """Give this rank a random state of its own, and the faults to rank 1."""
    import torch

    from services.sampler.loop import rows

    torch.manual_seed(2000 + rank)
    module: Any = rows
    draw = module.draw_rows

    def draw_or_fail(shape: Any, given: Any, seed: int) -> Any:
        drawn = draw(shape, given, seed)
        if rank == 1 and seed == OTHER_NOISE:
            drawn.audio[3, 4] += 1e-6
        if rank == 1 and seed == NO_MEMORY:
            raise torch.OutOfMemoryError(FIGURES)
        if rank == 1 and seed == DUMP:
            raise RuntimeError(f"a kernel failed over {torch.randn(50, 50)} and gave up")
        if seed == NOT_FINITE:
            drawn.video[0, 0] = float("nan")
        return drawn

    module.draw_rows = draw_or_fail
