"""Stretches of 22 frames pass the video VAE as whole clips pass the class."""

import torch

from tools.demo_model import models, painting, units
from tools.demo_model.sharpness import border_ratio, excess_loss, slope_loss


def test_stretches_equal_the_class() -> None:
    """Latents of 17 n + 5 frames and the pictures of one window are the class's."""
    torch.manual_seed(0)
    vae = models.video_vae().eval()
    video = torch.randn(1, 3, 39, 32, 32)
    latents = torch.randn(1, 24, 7, 2, 2)
    with torch.no_grad():
        moments = vae.encode(video).latent_dist.parameters
        assert (units.encode(vae, video) - moments).abs().max() < 1e-5 * moments.abs().max()
        decoded = vae.decode(latents).sample
        assert (units.decode(vae, latents) - decoded).abs().max() < 1e-6


def test_pixel_convention_returns() -> None:
    """Pictures survive the way into the model's convention and back."""
    video = torch.rand(1, 3, 2, 4, 4) * 2 - 1
    assert torch.allclose(units.from_model(units.to_model(video)), (video + 1) / 2, atol=1e-6)


def test_border_ratio_sees_a_grid() -> None:
    """Pictures as wanted have ratio 1; steps at every sixteenth pixel raise it."""
    ramp = torch.linspace(0, 1, 128).expand(1, 128, 128)
    wanted = [ramp + ramp.mT, ramp * 0.5]
    assert abs(border_ratio(wanted, wanted) - 1) < 1e-6
    steps = (torch.arange(128) // 16 % 2 * 0.1).expand(1, 128, 128)
    assert border_ratio([each + steps + steps.mT for each in wanted], wanted) > 2
    assert slope_loss(torch.zeros(1, 3, 1, 128, 128), (steps + steps.mT)[None, None] * 1.0, 3.0) > 0


def test_only_steeper_borders_are_in_excess() -> None:
    """A step too many across a border counts by its height; one elsewhere or too few does not."""
    plain = torch.zeros(1, 3, 2, 64, 64)
    step, elsewhere = plain.clone(), plain.clone()
    step[..., 16:], elsewhere[..., 20:] = 0.3, 0.3
    # One of three borders of one of two axes.
    assert abs(float(excess_loss(step, plain)) - 0.3 / 3 / 2) < 1e-6
    assert float(excess_loss(-step, plain)) == float(excess_loss(step, plain))
    assert float(excess_loss(elsewhere, plain)) == 0.0
    assert float(excess_loss(plain, step)) == 0.0


def test_the_brush_paints_patches() -> None:
    """Started from clips, the decoder's last layer alone can paint unseen ones well."""
    cpu = torch.device("cpu")
    vae = models.video_vae()
    painting.start(vae, 3, cpu)
    layer = vae.decoder.proj_out
    patches = painting._patches(99, cpu)
    apart = patches - layer.bias
    found = torch.linalg.lstsq(layer.weight, apart.T).solution
    wrong = (layer.weight @ found - apart.T).pow(2).mean() * 0.226**2
    assert -10 * torch.log10(wrong) > 34


def test_a_first_picture_needs_no_encoding_of_its_own() -> None:
    """A clip's first latent is its first picture's, and a clip's start is encoded as if alone."""
    torch.manual_seed(0)
    vae = models.video_vae().eval()
    video = torch.randn(1, 3, 56, 32, 32)
    with torch.no_grad():
        whole = units.encode(vae, video)
        alone = vae.encode(video[:, :, :1]).latent_dist.parameters
        start = vae.encode(video[:, :, :39]).latent_dist.parameters
    assert torch.allclose(whole[:, :, :1], alone, atol=1e-5)
    assert torch.allclose(whole[:, :, : start.shape[2]], start, atol=1e-5)
