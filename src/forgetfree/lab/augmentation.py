"""Augmentation: training images changed by chance, a whole batch at once and each image in its own way.

All are functions of (images [n, channels, height, width], generator) that return new images of the same shape. Nothing
but the generator decides: the same one gives the same images, and torch's own random state is not touched.

`crop_and_flip` is what the paper describes, for small images; `zoom_and_flip` is its counterpart for photographs.
`strong` is what the released code does on TOPIC's splits, as ALICE does: tables on those splits start several points
higher. `slanted` is for drawings, which are never mirrored.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from forgetfree.errors import InputError

GREY = (0.299, 0.587, 0.114)
"""How much red, green and blue count for brightness (ITU-R 601)."""
TRIES = 10
"""So many boxes are drawn for each image; if none fits, it stays as whole as its shape allows."""


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Each image moved by up to `padding` pixels either way and mirrored or not; of any range.

    What comes in from outside is zero: the mean colour of an image that is normalised already. The released code pads
    before it normalises, so with black.
    """
    return flip(crop(images, generator, padding), generator)


def zoom_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """A box of each image enlarged, and mirrored or not; of any range."""
    return flip(resized_crop(images, generator, area=(0.08, 1.0)), generator)


def strong(images: Tensor, generator: torch.Generator) -> Tensor:
    """A box of each image enlarged, mirrored or not, in other colours or grey.

    Images are red, green and blue in [0, 1], so normalise afterwards; what comes back is in [0, 1] too.
    """
    _check_colours(images)
    moved = flip(resized_crop(images, generator), generator)
    return greyscale(colour_jitter(moved, generator), generator).clamp(0, 1)  # sums of weights round above one


def slanted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each drawing turned, stretched, slanted and moved a little; of any range, zeros come in from outside."""
    return affine(images, generator)


AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop_and_flip": crop_and_flip,
    "zoom_and_flip": zoom_and_flip,
    "strong": strong,
    "slanted": slanted,
}


def crop(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """A window of each image's own size, anywhere in the image with a border of zeros."""
    count, _, height, width = images.shape
    drawn = torch.randint(2 * padding + 1, (2, count), generator=generator, device=generator.device)
    top, left = drawn.to(images.device)
    windows = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)  # [n, c, top, left, h, w]
    return windows[torch.arange(count, device=images.device), :, top, left]


def affine(
    images: Tensor,
    generator: torch.Generator,
    turn: float = 10.0,
    stretch: float = 0.1,
    slant: float = 0.1,
    move: float = 0.06,
) -> Tensor:
    """Each image turned by up to `turn` degrees, stretched and slanted by up to such parts of it, and moved.

    Bilinear; what comes in from outside is zero.
    """
    if not len(images):
        return images.clone()
    angle, wide, high, lean, right, down = 2 * _uniform((6, len(images)), images, generator) - 1
    sine, cosine = (angle * math.radians(turn)).sin(), (angle * math.radians(turn)).cos()
    wide, high, lean = 1 + stretch * wide, 1 + stretch * high, slant * lean
    across = torch.stack([cosine * wide, cosine * lean - sine * high, 2 * move * right], 1)
    along = torch.stack([sine * wide, sine * lean + cosine * high, 2 * move * down], 1)
    grid = F.affine_grid(torch.stack([across, along], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False, padding_mode="zeros")


def flip(images: Tensor, generator: torch.Generator, p: float = 0.5) -> Tensor:
    """Each image mirrored, left to right, with probability `p`."""
    return torch.where(_chosen(p, images, generator).view(-1, 1, 1, 1), images.flip(3), images)


def resized_crop(
    images: Tensor,
    generator: torch.Generator,
    area: tuple[float, float] = (0.2, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """A box of each image, of a fraction of its area and a ratio of width to height within bounds, in full size again.

    Bilinear; pixels outside the box play no part.
    """
    top, left, height, width = _boxes(images, generator, area, ratio)
    rows = _between(top, height, images.shape[2])
    columns = _between(left, width, images.shape[3])
    size = rows.shape[1], columns.shape[1]
    grid = torch.stack([columns[:, None].expand(-1, *size), rows[:, :, None].expand(-1, *size)], 3)  # x before y
    return F.grid_sample(images, grid.to(images.dtype), align_corners=False, padding_mode="border")


def colour_jitter(
    images: Tensor,
    generator: torch.Generator,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
    p: float = 0.8,
) -> Tensor:
    """With probability `p`, brightness, contrast, saturation and hue of an image changed, in an order of its own.

    The first three are scaled by a factor within 1 ± what is given, the last is turned by up to `hue` of the circle.
    """
    chosen = _chosen(p, images, generator)
    changes = (
        (_brighter, 1.0, brightness),
        (_with_contrast, 1.0, contrast),
        (_with_saturation, 1.0, saturation),
        (_turned, 0.0, hue),
    )
    order = _uniform((len(images), len(changes)), images, generator).argsort(1)
    amounts = [middle + reach * (2 * _uniform((len(images),), images, generator) - 1) for _, middle, reach in changes]
    changed = images.clone()
    for position in range(len(changes)):
        for i, (change, _, _) in enumerate(changes):
            rows = (chosen & (order[:, position] == i)).nonzero().flatten()
            changed[rows] = change(changed[rows], amounts[i][rows].view(-1, 1, 1, 1)).clamp(0, 1)
    return changed


def greyscale(images: Tensor, generator: torch.Generator, p: float = 0.2) -> Tensor:
    """Each image without its colours, with probability `p`; still three channels."""
    return torch.where(_chosen(p, images, generator).view(-1, 1, 1, 1), _grey(images), images)


def _boxes(
    images: Tensor, generator: torch.Generator, area: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width of a box in each image, in pixels."""
    count, _, full_height, full_width = images.shape
    share, shape, down, right = _uniform((4, count, TRIES), images, generator, torch.float64)
    pixels = full_height * full_width * (area[0] + (area[1] - area[0]) * share)
    ratios = ratio[0] * (ratio[1] / ratio[0]) ** shape  # too wide as often as too high
    heights, widths = (pixels / ratios).sqrt().round(), (pixels * ratios).sqrt().round()
    # one more that always fits: the largest, in the middle
    heights = F.pad(heights, (0, 1), value=min(full_height, round(full_width / ratio[0])))
    widths = F.pad(widths, (0, 1), value=min(full_width, round(full_height * ratio[1])))
    down, right = F.pad(down, (0, 1), value=0.5), F.pad(right, (0, 1), value=0.5)
    fits = (heights >= 1) & (heights <= full_height) & (widths >= 1) & (widths <= full_width)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    height, width, down, right = (each.gather(1, first).squeeze(1) for each in (heights, widths, down, right))
    return (down * (full_height - height + 1)).floor(), (right * (full_width - width + 1)).floor(), height, width


def _between(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Where along an axis of `size` pixels a piece of it is looked at to fill the axis, for grid_sample: [n, size]."""
    steps = (torch.arange(size, device=start.device) + 0.5) / size
    inside = (steps * length[:, None] - 0.5).clamp(min=0)
    pixel = start[:, None] + torch.minimum(inside, length[:, None] - 1)  # never beyond the centre of the last pixel
    return (2 * pixel + 1) / size - 1


def _brighter(images: Tensor, factor: Tensor) -> Tensor:
    return images * factor


def _with_contrast(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_grey(images).mean((1, 2, 3), keepdim=True), images, factor)


def _with_saturation(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_grey(images), images, factor)


def _turned(images: Tensor, turn: Tensor) -> Tensor:
    """The hue moved by a fraction of the circle; lightest and darkest channel of a pixel keep their values."""
    red, green, blue = images.chunk(3, 1)
    value, low = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, 1)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = sixth + 6 * turn
    # from hue back to a channel: full, falling, empty, rising around the circle, each channel a third further on
    offsets = torch.tensor([5.0, 3.0, 1.0], dtype=images.dtype, device=images.device).view(1, 3, 1, 1)
    around = (offsets + sixth) % 6
    return value - chroma * torch.minimum(around, 4 - around).clamp(0, 1)


def _grey(images: Tensor) -> Tensor:
    weights = torch.tensor(GREY, dtype=images.dtype, device=images.device).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True).expand_as(images)


def _chosen(p: float, images: Tensor, generator: torch.Generator) -> Tensor:
    """Whether it happens to each image."""
    return _uniform((len(images),), images, generator) < p


def _uniform(
    shape: tuple[int, ...], images: Tensor, generator: torch.Generator, dtype: torch.dtype | None = None
) -> Tensor:
    """Numbers in [0, 1), drawn where the generator is, so the same whatever device the images are on."""
    drawn = torch.rand(shape, generator=generator, device=generator.device, dtype=dtype or torch.float32)
    return drawn.to(images.device, dtype or images.dtype)


def _check_colours(images: Tensor) -> None:
    if images.dim() != 4 or images.shape[1] != 3 or not images.is_floating_point():
        raise InputError(
            "images to be changed in colour are fractions of red, green and blue, [n, 3, height, width]; got "
            f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}."
        )
    if images.numel() and not (images.amin() >= 0 and images.amax() <= 1):
        raise InputError(
            f"images to be changed in colour are in [0, 1]; got {images.amin():.3g} to {images.amax():.3g}. "
            "Normalise them afterwards."
        )
