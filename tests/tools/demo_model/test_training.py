"""Trainings go on where they stopped, and say how they go."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tools.demo_model import loop
from tools.demo_model.loop import Training
from tools.demo_model.pace import Pace, Recipe


def _run(folder: Path, steps: int) -> Training:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    training = Training("line", model, Recipe(learning_rate=0.05, ema=0.9), folder)
    training.resume()

    def loss_of(step: int) -> dict[str, Tensor]:
        inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
        return {"loss": ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()}

    training.run(loss_of, Pace(1.0, 1.0, steps=steps))
    return training


def test_a_training_resumes(tmp_path: Path) -> None:
    """A second command starts at the step, weights and average that the first one left."""
    first = _run(tmp_path, 60)
    second = _run(tmp_path, 0)
    assert second.step == 60
    for ours, theirs in ((first.weights, second.weights), (first.average, second.average)):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert _run(tmp_path, 40).step == 100


def test_losses_are_logged(tmp_path: Path) -> None:
    """Every fifty steps leave a line of JSON with the losses, which fall."""
    _run(tmp_path, 300)
    lines = [json.loads(line) for line in (tmp_path / "line.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [50, 100, 150, 200, 250, 300]
    assert lines[-1]["loss"] < lines[0]["loss"] / 2


def test_the_average_is_what_is_kept(tmp_path: Path) -> None:
    """After a training the model can be given the mean of its last weights."""
    training = _run(tmp_path, 20)
    last = [weight.detach().clone() for weight in training.weights]
    training.use_average()
    assert not all(torch.equal(a, b) for a, b in zip(last, training.weights, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(training.average, training.weights, strict=True))


def test_a_long_training_is_kept_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is saved and its average shipped before it ends, the model itself left alone."""
    monkeypatch.setattr(loop, "_KEEP_EVERY_S", 0.0)
    shipped: list[nn.Module] = []
    training = _run(tmp_path, 0)

    def ship(averaged: nn.Module) -> None:
        assert training.state.exists()
        means = zip(averaged.parameters(), training.average, strict=True)
        assert all(torch.equal(weight, mean) for weight, mean in means)
        assert averaged is not training.model
        shipped.append(averaged)

    training.state.unlink()
    training.run(
        lambda step: {"loss": training.model(torch.ones(1, 3)).mean() ** 2},
        Pace(1.0, 1.0, steps=110),
        ship,
    )
    assert len(shipped) == 2
