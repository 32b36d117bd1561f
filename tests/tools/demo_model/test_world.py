"""The demo world renders the same clip for the same seed, and never a held-out one in training."""

import random

import torch

from tools.demo_model import drawing, prompts
from tools.demo_model.attributes import (
    COLOURS,
    MOTIONS,
    SAMPLES,
    SHAPES,
    SOUNDS,
    has_held_out,
    is_held_out,
)
from tools.demo_model.world import render_audio, render_video


def test_shapes_and_ranges() -> None:
    """Pictures lie in [-1, 1], sounds in full scale, with the shapes that the models take."""
    clips = drawing.draw_clips(1, 6)
    video = render_video(clips, torch.tensor([0, 123]))
    audio = render_audio(clips)
    assert video.shape == (6, 3, 2, 128, 128)
    assert audio.shape == (6, 2, SAMPLES)
    assert video.abs().max() <= 1
    assert audio.abs().max() <= 1


def test_same_seed_same_clip() -> None:
    """A seed decides every pixel and every sample; another one makes another clip."""
    first, again, other = (drawing.draw_clips(seed, 3) for seed in (4, 4, 5))
    frames = torch.tensor([60])
    assert torch.equal(render_video(first, frames), render_video(again, frames))
    assert torch.equal(render_audio(first), render_audio(again))
    assert not torch.equal(render_video(first, frames), render_video(other, frames))


def test_each_frame_may_differ_by_clip() -> None:
    """Frames can be named for each clip on its own, and equal those of a common list."""
    clips = drawing.draw_clips(2, 2)
    apart = render_video(clips, torch.tensor([[3, 4], [90, 91]]))
    assert torch.equal(apart[0], render_video(clips[:1], torch.tensor([3, 4]))[0])
    assert torch.equal(apart[1], render_video(clips[1:], torch.tensor([90, 91]))[0])


def test_held_out_combinations() -> None:
    """Every colour, shape and motion is seen in training and is held out in some combination."""
    triples = [(c, s, m) for c in COLOURS for s in SHAPES for m in MOTIONS]
    held = [triple for triple in triples if is_held_out(*triple)]
    assert len(held) == len(triples) // 9
    for place, names in enumerate((COLOURS, SHAPES, MOTIONS)):
        assert {triple[place] for triple in held} == set(names)
        assert {triple[place] for triple in triples if triple not in held} == set(names)


def test_training_draws_nothing_held_out() -> None:
    """Two thousand training scenes hold no held-out object; held-out ones hold nothing else."""
    assert not any(has_held_out(clip.scene) for clip in drawing.draw_clips(9, 2000))
    source = random.Random(3)
    for count in (1, 2):
        scene = drawing.draw_held_out_scene(source, objects=count)
        assert all(is_held_out(e.colour, e.shape, scene.motion) for e in scene.objects)


def test_prompts_are_many_and_repeatable() -> None:
    """A scene has many prompts in two languages, the same ones for the same source."""
    scene = drawing.draw_clips(1, 1, objects=1)[0].scene
    for language in prompts.LANGUAGES:
        source = random.Random(0)
        said = {prompts.say(scene, source, language) for _ in range(200)}
        assert len(said) > 50
        assert prompts.say(scene, random.Random(7), language) == prompts.say(
            scene, random.Random(7), language
        )


def test_a_reference_prompt_names_no_look() -> None:
    """What a reference shows is not said in words: no colour, no shape."""
    for clip in drawing.draw_clips(3, 50, objects=1):
        said = prompts.say_with_reference(clip.scene, "image", random.Random(1), "en")
        assert not set(said.replace(",", "").split()) & {*COLOURS, *SHAPES}


def test_sounds_differ() -> None:
    """Each kind of sound is drawn and sounds unlike the others."""
    assert {clip.scene.sound for clip in drawing.draw_clips(1, 100)} == set(SOUNDS)
