"""One loop for every training: paced by the clock, resumable, with an average of the weights."""

import copy
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tools.demo_model.pace import Pace, Recipe, rate

_LOG_EVERY = 50
_KEEP_EVERY_S = 120  # a machine that is taken away takes no more than this with it


class Training:
    """A model, its average and its optimizer, kept in `folder` as `NAME.state.pt`."""

    def __init__(self, name: str, model: nn.Module, recipe: Recipe, folder: Path) -> None:
        self.name, self.model, self.recipe, self.folder = name, model, recipe, folder
        self.weights: list[Tensor] = [each for each in model.parameters() if each.requires_grad]
        self.average = [weight.detach().clone() for weight in self.weights]
        self.device = self.weights[0].device
        self.optimizer = torch.optim.AdamW(
            self.weights,
            lr=recipe.learning_rate,
            betas=recipe.betas,
            weight_decay=recipe.weight_decay,
            fused=self.device.type == "cuda",
        )
        self.step = 0
        self.spent_s = 0.0

    @property
    def state(self) -> Path:
        """The file that a later command resumes from."""
        return self.folder / f"{self.name}.state.pt"

    def resume(self) -> None:
        """Continue from the saved state, if there is one."""
        if not self.state.exists():
            self._start_from_shipped()
            return
        saved: dict[str, Any] = torch.load(self.state, map_location=self.device)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.average = saved["average"]
        self.step, self.spent_s = saved["step"], saved["spent_s"]

    def _start_from_shipped(self) -> None:
        """Without a state, weights that an earlier run left are a better start than none."""
        shards = sorted((self.folder / self.name).glob("diffusion_pytorch_model*.safetensors"))
        if shards:
            from safetensors.torch import load_file

            shipped = {name: each for path in shards for name, each in load_file(path).items()}
            self.model.load_state_dict(shipped)
            self.average = [weight.detach().clone() for weight in self.weights]

    def save(self) -> None:
        """Write the whole state beside the old one and put it in its place."""
        part = self.state.with_suffix(".part")
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "step": self.step,
            "spent_s": self.spent_s,
        }
        torch.save(state, part)
        part.replace(self.state)

    def use_average(self) -> None:
        """Give the model its averaged weights, for good: what is exported and looked at."""
        with torch.no_grad():
            for weight, mean in zip(self.weights, self.average, strict=True):
                weight.copy_(mean)

    def log(self, **values: Any) -> None:
        """A JSON line in `NAME.jsonl`, and on the terminal."""
        line = json.dumps({"stage": self.name, "step": self.step, **values})
        with (self.folder / f"{self.name}.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def averaged(self) -> nn.Module:
        """A copy of the model with its averaged weights."""
        twin = copy.deepcopy(self.model)
        weights = [each for each in twin.parameters() if each.requires_grad]
        with torch.no_grad():
            for weight, mean in zip(weights, self.average, strict=True):
                weight.copy_(mean)
        return twin

    def run(
        self,
        loss_of: Callable[[int], dict[str, Tensor]],
        pace: Pace,
        ship: Callable[[nn.Module], None] | None = None,
    ) -> None:
        """Train until the pace is spent, on the "loss" among the losses of `loss_of(step)`.

        The state is kept every two minutes, and the averaged model shipped.
        """
        half = self.recipe.half and self.device.type == "cuda"
        began, before, first = time.monotonic(), self.spent_s, self.step
        kept = began
        seen: dict[str, Tensor] = {}
        while True:
            now_s = time.monotonic() - began
            self.spent_s = before + now_s
            done = self.step - first
            if done >= pace.steps if pace.steps is not None else now_s >= pace.minutes * 60:
                break
            share = done / pace.steps if pace.steps else self.spent_s / (pace.plan_minutes * 60)
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.learning_rate * rate(share, self.step)
            context = torch.autocast("cuda", torch.bfloat16) if half else nullcontext()
            with context:
                losses = loss_of(self.step)
            self._update(losses["loss"])
            seen = {name: value.detach() for name, value in losses.items()}
            self.step += 1
            if self.step % _LOG_EVERY == 0:
                self.log(
                    spent_s=round(self.spent_s, 1),
                    **{name: round(float(value), 5) for name, value in seen.items()},
                )
                if time.monotonic() - kept > _KEEP_EVERY_S:
                    self.save()
                    if ship is not None:
                        ship(self.averaged())
                    kept = time.monotonic()
        self.save()

    def _update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.weights, self.recipe.clip_norm)
        self.optimizer.step()
        # Young averages forget their start quickly.
        decay = min(self.recipe.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.weights, 1 - decay)
