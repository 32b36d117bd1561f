"""Modes by the names that the model's own code gives them."""

from reelmesh.v1 import transfer_pb2

_NAMES = {
    transfer_pb2.MODE_T2VA: "t2va",
    transfer_pb2.MODE_FL2VA: "fl2va",
    transfer_pb2.MODE_REF2VA: "ref2va",
}


def mode_name(mode: transfer_pb2.Mode) -> str:
    """For example "t2va"."""
    return _NAMES[mode]


def mode_number(name: str) -> transfer_pb2.Mode:
    """For example MODE_T2VA, of "t2va"."""
    return {known: number for number, known in _NAMES.items()}[name]
