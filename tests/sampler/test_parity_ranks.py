"""Every layout computes what one rank computes with diffusers' own transformer."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.common.checkpoint.components import ModelSettings
from services.sampler.engine import SamplerEngine
from services.sampler.layout import RankLayout
from tests.sampler.crews import BOTH, Found, Pool, Tensors, digest, distance, forward, latents
from tests.sampler.orders import conditionings

THREADS = 1
# Parts of the largest magnitude. xfuser moves rows and heads and adds in the same order; TP adds
# the parts of each sum in another order, twice a block.
XFUSER, TENSOR_PARALLEL = 1e-6, 3e-6
# The fused forward multiplies matrices of other sizes, at one rank too.
FUSED = 1e-5
# Neighbours in bf16 are 2^-8 apart.
HALF = 1e-2
BOUNDS = {
    "ulysses4": XFUSER,
    "tp2-ulysses2": TENSOR_PARALLEL,
    "tp2-ulysses2-fsdp": TENSOR_PARALLEL,
    "ulysses2": XFUSER,
    "tp2": TENSOR_PARALLEL,
    "ulysses2-fsdp": XFUSER,
    "tp4": TENSOR_PARALLEL,
}
LAYOUTS = {
    "ulysses4": RankLayout(ulysses=4),
    "tp2-ulysses2": RankLayout(tp=2, ulysses=2),
    "tp2-ulysses2-fsdp": RankLayout(tp=2, ulysses=2, fsdp=True),
    "ulysses2": RankLayout(ulysses=2),
    "tp2": RankLayout(tp=2),
    "ulysses2-fsdp": RankLayout(ulysses=2, fsdp=True),
    "tp4": RankLayout(tp=4),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Rank processes for all layouts."""
    made = Pool()
    yield made
    made.close()


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Conditioning of every mode."""
    return conditionings(tmp_path_factory.mktemp("given"))


def one_rank(settings: ModelSettings) -> SamplerEngine:
    """The engine that a single rank has: diffusers' transformer."""
    engine = SamplerEngine(settings, BOTH)
    engine.load()
    return engine


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: Path) -> ModelSettings:
    """fp32 on one thread."""
    return ModelSettings(str(tiny_checkpoint), "cpu", threads=THREADS)


@pytest.fixture(scope="module")
def found(pool: Pool, settings: ModelSettings, given: dict[str, Path]) -> dict[str, list[Found]]:
    """What every rank of every layout computed."""
    return pool.measure(LAYOUTS, settings, given)


@pytest.fixture(scope="module")
def fused(pool: Pool, settings: ModelSettings, given: dict[str, Path]) -> dict[int, list[Found]]:
    """What ranks with fused kernels computed, by their number."""
    layouts = {str(ranks): RankLayout(ulysses=ranks) for ranks in (2, 4)}
    found = pool.measure(layouts, settings, given, replace(BOTH, compile=True))
    return {int(name): ranks for name, ranks in found.items()}


@pytest.fixture(scope="module")
def alone(
    settings: ModelSettings, given: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[int, Tensors], dict[str, Tensors]]:
    """The forwards and the latents of one rank."""
    threads = torch.get_num_threads()
    engine = one_rank(settings)
    made = latents(engine, given, tmp_path_factory.mktemp("alone") / "latents")
    forwards = {rows: forward(engine._parts["transformer"], rows) for rows in (0, 1, 63)}
    torch.set_num_threads(threads)
    return forwards, made


@pytest.mark.parametrize("rows", [0, 1, 63])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_forwards_are_equal(
    found: dict[str, list[Found]],
    alone: tuple[dict[int, Tensors], dict[str, Tensors]],
    layout: str,
    rows: int,
) -> None:
    """With 0, 1 and 63 rows beyond a multiple of 64, video and audio rows each, on every rank."""
    for kind in ("video", "audio"):
        ours, theirs = found[layout][0].forwards[rows][kind], alone[0][rows][kind]
        assert distance(ours, theirs) <= BOUNDS[layout], kind
    assert len({digest(rank.forwards[rows]) for rank in found[layout]}) == 1


@pytest.mark.parametrize("mode", ["t2va", "fl2va", "ref2va"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_latents_are_equal(
    found: dict[str, list[Found]],
    alone: tuple[dict[int, Tensors], dict[str, Tensors]],
    layout: str,
    mode: str,
) -> None:
    """A whole run of each mode, though the ranks' own random states differ."""
    for name in ("latents", "audio_latents"):
        ours, theirs = found[layout][0].latents[mode][name], alone[1][mode][name]
        assert distance(ours, theirs) <= BOUNDS[layout], name


@pytest.mark.parametrize("mode", ["t2va", "fl2va", "ref2va"])
@pytest.mark.parametrize("ulysses", [2, 4])
def test_fused_ranks_give_the_same(
    fused: dict[int, list[Found]],
    alone: tuple[dict[int, Tensors], dict[str, Tensors]],
    ulysses: int,
    mode: str,
) -> None:
    """The fused forward divided by Ulysses, padding and all."""
    for name in ("latents", "audio_latents"):
        ours, theirs = fused[ulysses][0].latents[mode][name], alone[1][mode][name]
        assert distance(ours, theirs) <= FUSED, name


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "ulysses2"])
def test_a_rank_keeps_its_part(found: dict[str, list[Found]], layout: str) -> None:
    """Of the blocks' matrices a rank of a divided model holds its part and no more."""
    whole = {name: count for name, (count, _) in found["ulysses2"][0].kept.items()}
    degrees = LAYOUTS[layout]
    for rank in found[layout]:
        for name, (count, _) in rank.kept.items():
            parts = 1
            if "blocks." in name and "norm" not in name:
                parts = degrees.tp
            if "blocks." in name and degrees.fsdp:
                parts *= degrees.ulysses
            assert count == whole[name] // parts, name


def test_mixed_precision_is_divided(
    pool: Pool, tiny_checkpoint: Path, given: dict[str, Path]
) -> None:
    """bf16 blocks are divided by FSDP, their fp32 neighbours stay whole, and the rows agree."""
    half = ModelSettings(str(tiny_checkpoint), "cpu", "bf16", threads=THREADS)
    layout = RankLayout(ulysses=2, fsdp=True)
    ranks = pool.measure({"mixed": layout}, half, given)["mixed"]
    dtypes = {name: dtype for name, (_, dtype) in ranks[0].kept.items()}
    assert dtypes["proj_in.weight"] == dtypes["audio_proj_out.weight"] == "torch.float32"
    assert dtypes["time_embedder.linear_1.weight"] == "torch.float32"
    assert dtypes["transformer_blocks.0.ff.net.0.proj.weight"] == "torch.bfloat16"
    threads = torch.get_num_threads()
    theirs = forward(one_rank(half)._parts["transformer"], 1)
    torch.set_num_threads(threads)
    for kind in ("video", "audio"):
        assert distance(ranks[0].forwards[1][kind], theirs[kind]) <= HALF
