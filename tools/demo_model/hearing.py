"""Reads the sound of a clip: its kind, its beat and where it comes from."""

import numpy as np
from numpy.typing import NDArray

from tools.demo_model.attributes import BEEP_HZ, TONES_HZ

Floats = NDArray[np.float64]
BLOCK_S = 0.01  # seconds of one value of a loudness curve
_SILENT = 0.02  # of full scale, root mean square
_TONAL = 0.5  # of the power of a tone lies this near its peak, of a wash far less
_PEAK_HZ = 40.0


def loudness(audio: Floats, rate: int) -> Floats:
    """(channels, blocks) root mean square of audio (channels, samples) every `BLOCK_S`."""
    size = round(rate * BLOCK_S)
    blocks = audio[:, : audio.shape[1] // size * size].reshape(audio.shape[0], -1, size)
    levels: Floats = np.sqrt((blocks**2).mean(axis=-1))
    return levels


def read_sound(audio: Floats, rate: int) -> str:
    """One of `attributes.SOUNDS` for stereo audio (2, samples) at `rate` Hz."""
    levels = np.sqrt((loudness(audio, rate) ** 2).sum(axis=0))
    if np.sqrt((levels**2).mean()) < _SILENT:
        return "silence"
    # The louder channel alone: a sum of both could cancel.
    channel = audio[int((audio**2).sum(axis=1).argmax())]
    power = np.abs(np.fft.rfft(channel * np.hanning(len(channel)))) ** 2
    hertz = np.fft.rfftfreq(len(channel), 1 / rate)
    power[hertz < 40] = 0
    peak = hertz[power.argmax()]
    near = power[np.abs(hertz - peak) < _PEAK_HZ].sum() / power.sum()
    if near < _TONAL:
        return "wash"
    names = {**TONES_HZ, "beeps": BEEP_HZ}
    name = min(names, key=lambda each: abs(float(np.log(names[each] / peak))))
    beats = len(read_beats(audio, rate)) >= 4
    if beats != (name == "beeps"):
        return ""  # a broken tone, or an unbroken beep, is neither
    return name


def read_beats(audio: Floats, rate: int) -> Floats:
    """Seconds at which the sound begins anew after a pause: empty for a steady sound."""
    levels = np.sqrt((loudness(audio, rate) ** 2).sum(axis=0))
    smooth = np.convolve(levels, np.ones(3) / 3, mode="same")
    top = np.quantile(smooth, 0.98)
    beats, quiet = [], True
    for number, level in enumerate(smooth):
        if quiet and level > 0.5 * top:
            beats.append(number * BLOCK_S)
            quiet = False
        elif level < 0.2 * top:
            quiet = True
    return np.array(beats)


def read_pan(audio: Floats, rate: int) -> tuple[Floats, Floats]:
    """0..1 from left to right of every block, and its loudness; both (blocks,)."""
    left, right = loudness(audio, rate)
    pan: Floats = np.arctan2(right, left) / (np.pi / 2)
    return pan, np.hypot(left, right)
