"""Which card each rank gets, by what the operator calls it.

A rank sees one card alone: its `CUDA_VISIBLE_DEVICES` is set before it imports torch.
"""

from collections.abc import Mapping, Sequence

from services.sampler.layout import LayoutRefused

_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def environments(
    named: Sequence[str], ranks: int, inherited: Mapping[str, str]
) -> list[dict[str, str]]:
    """The environment of every rank; `inherited` is the supervisor's own.

    A name is a UUID, or an index as the operator sees it: into CUDA_VISIBLE_DEVICES where that is
    set, else the index that nvidia-smi shows. Unnamed, the first cards are taken. Raises
    `LayoutRefused` when the names do not give every rank a card of its own.
    """
    given = inherited.get(_VISIBLE)
    visible = [part.strip() for part in given.split(",") if part.strip()] if given else None
    names = [name.strip() for name in named] or [str(index) for index in range(ranks)]
    if len(names) != ranks:
        raise LayoutRefused(f"{ranks} ranks need {ranks} devices, not {len(names)}: {names}")
    cards = [_resolve(name, visible) for name in names]
    if len(set(cards)) != len(cards):
        raise LayoutRefused(f"a device is named twice: {', '.join(names)}")
    # nvidia-smi counts by bus; CUDA's own default is fastest first.
    order = inherited.get(_ORDER, "PCI_BUS_ID")
    return [{_VISIBLE: card, _ORDER: order} for card in cards]


def _resolve(name: str, visible: list[str] | None) -> str:
    if not name.isdigit():
        if not name.startswith(("GPU-", "MIG-")):
            raise LayoutRefused(f"a device is an index or a UUID (GPU-… or MIG-…), not {name!r}")
        return name
    if visible is None:
        return name
    if int(name) >= len(visible):
        raise LayoutRefused(f"device {name}: {_VISIBLE} has {len(visible)} devices")
    return visible[int(name)]
