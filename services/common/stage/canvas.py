"""Canvases: which ones the limits admit, and the nearest that they do.

The registry asks before it queues a job, and a stage again before it starts a run. A limit of 0 is
one that an instance does not state.
"""

import math

from reelmesh.v1 import stage_pb2
from services.common.rpc.errors import MeshError, Reason

# The transformer sees the canvas in patches of 32 pixels.
CANVAS_MULTIPLE = 32


def refuse_canvas(
    limits: stage_pb2.Limits, height: int, width: int, field: str
) -> MeshError | None:
    """Why the canvas is not admitted, in its first reason; None if it is.

    Names the edge that is wrong as one of `field`'s, or `field` if it is more than one of them.
    """
    multiple = limits.canvas_multiple or CANVAS_MULTIPLE
    least = _up(max(limits.min_edge, multiple), multiple)
    near_height, near_width = nearest_canvas(limits, height, width)
    near = f"the nearest canvas is {near_width}x{near_height} (width x height)"
    info = {"nearest": f"{near_width}x{near_height}"}
    edges = (("width", width), ("height", height))
    off = [(name, edge) for name, edge in edges if edge % multiple]
    small = [(name, edge) for name, edge in edges if edge < least]
    for reason, wrong, rule in (
        (Reason.CANVAS_OFF_GRID, off, f"not a multiple of {multiple}"),
        (Reason.CANVAS_OUT_OF_RANGE, small, f"below {least}"),
    ):
        if wrong:
            words = " and ".join(f"the {name} {edge} is {rule}" for name, edge in wrong)
            named = f"{field}.{wrong[0][0]}" if len(wrong) == 1 else field
            return MeshError(reason, f"{words}: {near}", field=named, info=info)
    if limits.max_pixels and height * width > limits.max_pixels:
        words = f"{width}x{height} has more than {limits.max_pixels} pixels: {near}"
        return MeshError(Reason.CANVAS_OUT_OF_RANGE, words, field=field, info=info)
    if limits.max_aspect and max(height, width) > limits.max_aspect * min(height, width):
        words = f"{width}x{height} is longer than {limits.max_aspect:g} to 1: {near}"
        return MeshError(Reason.CANVAS_OUT_OF_RANGE, words, field=field, info=info)
    return None


def nearest_canvas(limits: stage_pb2.Limits, height: int, width: int) -> tuple[int, int]:
    """A canvas that the limits admit, near to this one: edges rounded, then shrunk to fit."""
    multiple = limits.canvas_multiple or CANVAS_MULTIPLE
    least = _up(max(limits.min_edge, multiple), multiple)
    edges = [max(least, (edge + multiple // 2) // multiple * multiple) for edge in (height, width)]
    pixels = limits.max_pixels
    if pixels and edges[0] * edges[1] > pixels:
        scale = math.sqrt(pixels / (edges[0] * edges[1]))
        edges = [max(least, int(edge * scale) // multiple * multiple) for edge in edges]
        # An edge that was held at the least leaves the other too long.
        long = edges.index(max(edges))
        edges[long] = max(least, min(edges[long], pixels // edges[1 - long] // multiple * multiple))
    if limits.max_aspect:
        long = edges.index(max(edges))
        most = int(edges[1 - long] * limits.max_aspect) // multiple * multiple
        edges[long] = max(least, min(edges[long], most))
    return edges[0], edges[1]


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
