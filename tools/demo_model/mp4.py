"""Decodes a published MP4 for the readers."""

from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray


def decode(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.float64], int]:
    """Frames (F, H, W, 3), stereo sound (2, samples) and its rate in Hz."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    with av.open(str(path)) as container:
        rate = int(container.streams.audio[0].rate)
        sounds = [frame.to_ndarray() for frame in container.decode(audio=0)]
    return np.stack(frames), np.concatenate(sounds, axis=1).astype(np.float64), rate
