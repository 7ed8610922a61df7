"""Augmentation: every image in its own way, by its generator alone, and nothing that the name does not say."""

import colorsys
import math
from collections.abc import Callable

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import forgetfree as ff
from forgetfree.lab import augmentation
from forgetfree.lab.augmentation import (
    AUGMENTATIONS,
    affine,
    colour_jitter,
    crop,
    crop_and_flip,
    flip,
    greyscale,
    resized_crop,
    strong,
)

Augment = Callable[[Tensor, torch.Generator], Tensor]
MANY = 2000
every_augmentation = pytest.mark.parametrize("augment", AUGMENTATIONS.values(), ids=AUGMENTATIONS.keys())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int, size: tuple[int, int] = (32, 32), seed: int = 0) -> Tensor:
    return torch.rand(count, 3, *size, generator=generator(seed))


def copies(count: int, size: tuple[int, int] = (8, 8)) -> Tensor:
    return pictures(1, size).expand(count, -1, -1, -1)


def about(count: float, of: int, p: float) -> bool:
    """Within five standard deviations."""
    return abs(count - of * p) <= 5 * math.sqrt(of * p * (1 - p))


def changed(images: Tensor, answer: Tensor) -> Tensor:
    return (images != answer).flatten(1).any(1)


@every_augmentation
def test_copies_of_one_image_become_different_images(augment: Augment) -> None:
    answer = augment(copies(16, (32, 32)), generator())
    assert len({tuple(image.flatten().tolist()) for image in answer}) >= 15  # two may be moved alike


@every_augmentation
def test_the_generator_alone_decides(augment: Augment) -> None:
    images, before = pictures(8), torch.get_rng_state()
    first = augment(images, generator(1))
    assert torch.equal(first, augment(images, generator(1)))
    assert not torch.equal(first, augment(images, generator(2)))
    assert torch.equal(torch.get_rng_state(), before)


@every_augmentation
def test_the_next_batch_is_changed_in_another_way(augment: Augment) -> None:
    images, chance = pictures(8), generator()
    assert not torch.equal(augment(images, chance), augment(images, chance))


@every_augmentation
@pytest.mark.parametrize("size", [(32, 32), (20, 30), (9, 1)], ids=str)
def test_shape_and_type_stay_and_the_given_images_are_not_written_to(augment: Augment, size: tuple[int, int]) -> None:
    images = pictures(5, size)
    kept = images.clone()
    answer = augment(images, generator())
    assert (answer.shape, answer.dtype) == (images.shape, images.dtype)
    assert torch.equal(images, kept)
    assert augment(images[:0], generator()).shape == (0, 3, *size)


@pytest.mark.parametrize("channels", [1, 3])
def test_crop_and_flip_only_moves_pixels(channels: int) -> None:
    """Each answer is one of the windows that are cut out image by image, mirrored or not."""
    images = torch.randn(40, channels, 6, 7, generator=generator(3))
    answer = crop_and_flip(images, generator(), padding=2)
    found = [places(image, moved, padding=2) for image, moved in zip(images, answer, strict=True)]
    assert all(len(each) == 1 for each in found)
    assert len({each[0] for each in found}) > 20


def places(image: Tensor, moved: Tensor, padding: int) -> list[tuple[int, int, bool]]:
    _, height, width = image.shape
    wide = torch.zeros(image.shape[0], height + 2 * padding, width + 2 * padding)
    wide[:, padding : padding + height, padding : padding + width] = image
    return [
        (top, left, mirrored)
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
        for mirrored in (False, True)
        for window in [wide[:, top : top + height, left : left + width]]
        if torch.equal(window[:, :, list(reversed(range(width)))] if mirrored else window, moved)
    ]


def test_every_offset_is_equally_likely() -> None:
    pixel = torch.zeros(MANY, 1, 5, 5)
    pixel[:, :, 2, 2] = 1
    seen = crop(pixel, generator(), padding=1).sum(0)[0]
    assert all(about(float(seen[row, column]), MANY, 1 / 9) for row in (1, 2, 3) for column in (1, 2, 3))
    assert seen.sum() == seen[1:4, 1:4].sum() == MANY


def test_without_padding_a_crop_is_the_image() -> None:
    images = pictures(4)
    assert torch.equal(crop(images, generator(), padding=0), images)


@pytest.mark.parametrize(("piece", "p"), [(flip, 0.5), (colour_jitter, 0.8), (greyscale, 0.2)])
def test_it_happens_as_often_as_it_should(piece: Augment, p: float) -> None:
    images = copies(MANY, (2, 3))
    assert about(int(changed(images, piece(images, generator())).sum()), MANY, p)


@pytest.mark.parametrize("piece", [flip, colour_jitter, greyscale])
def test_with_probability_zero_nothing_happens_and_with_one_it_happens_to_all(piece: Callable[..., Tensor]) -> None:
    images = pictures(50)
    assert torch.equal(piece(images, generator(), p=0.0), images)
    assert changed(images, piece(images, generator(), p=1.0)).all()


def test_a_box_of_the_whole_image_is_the_image() -> None:
    images = pictures(4)
    answer = resized_crop(images, generator(), area=(1.0, 1.0), ratio=(1.0, 1.0))
    assert torch.allclose(answer, images, atol=1e-5)


@pytest.mark.parametrize("size", [(32, 32), (12, 20)], ids=str)
def test_a_resized_crop_is_the_box_cut_out_and_enlarged(size: tuple[int, int]) -> None:
    images = pictures(20, size)
    boxes = augmentation._boxes(images, generator(), (0.2, 1.0), (3 / 4, 4 / 3))
    answer = resized_crop(images, generator())
    for i, box in enumerate(zip(*(side.int().tolist() for side in boxes), strict=True)):
        top, left, height, width = box
        cut = images[i : i + 1, :, top : top + height, left : left + width]
        assert cut.shape[2:] == (height, width)
        enlarged = F.interpolate(cut, size, mode="bilinear", align_corners=False)
        assert torch.allclose(answer[i], enlarged[0], atol=1e-4)


def test_boxes_have_the_areas_and_ratios_that_were_asked_for() -> None:
    _, _, height, width = augmentation._boxes(copies(MANY, (320, 320)), generator(), (0.2, 1.0), (3 / 4, 4 / 3))
    area, ratio = height * width / 320**2, width / height
    assert 0.195 < area.min() < 0.21
    assert 0.95 < area.max() <= 1
    assert 0.74 < ratio.min() < 0.77
    assert 1.3 < ratio.max() < 1.35
    assert about(int((ratio > 1).sum()), MANY, 0.5)


def test_an_image_that_no_box_fits_is_cut_in_the_middle() -> None:
    top, left, height, width = augmentation._boxes(pictures(3, (10, 40)), generator(), (1.0, 1.0), (3 / 4, 4 / 3))
    assert (height == 10).all()
    assert (width == 13).all()
    assert (top == 0).all()
    assert (left == 14).all()


def test_strong_stays_in_its_range_and_has_its_share_of_grey() -> None:
    images = (pictures(MANY, (6, 6)) * 1.2 - 0.1).clamp(0, 1)  # with full and empty channels
    answer = strong(images, generator())
    assert answer.min() >= 0
    assert answer.max() <= 1
    grey = (answer == answer[:, :1]).flatten(1).all(1)
    assert about(int(grey.sum()), MANY, 0.2)


def test_grey_is_what_pillow_calls_grey() -> None:
    images = torch.randint(256, (1, 3, 8, 8), generator=generator()).to(torch.uint8)
    wanted = Image.fromarray(images[0].permute(1, 2, 0).numpy()).convert("L")
    answer = greyscale(images / 255, generator(), p=1.0)
    assert torch.allclose(answer[0, 1] * 255, torch.tensor(list(wanted.tobytes())).view(8, 8) * 1.0, atol=0.6)
    assert torch.equal(answer[:, :1].expand_as(answer), answer)


def test_a_turned_hue_is_that_of_the_standard_library() -> None:
    images, turns = pictures(6, (4, 4)), torch.tensor([-0.1, -0.03, 0.0, 0.02, 0.1, 0.5])
    images[:, :, 0, 0] = 0.3  # a grey pixel has no hue
    answer = augmentation._turned(images, turns.view(-1, 1, 1, 1))
    for i, turn in enumerate(turns.tolist()):
        for row, column in ((0, 0), (1, 2), (3, 3), (2, 1)):
            hue, saturation, value = colorsys.rgb_to_hsv(*images[i, :, row, column].tolist())
            wanted = torch.tensor(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
            assert torch.allclose(answer[i, :, row, column], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("_brighter", lambda image, grey: 0.7 * image),
        ("_with_contrast", lambda image, grey: 0.7 * image + 0.3 * grey.mean()),
        ("_with_saturation", lambda image, grey: 0.7 * image + 0.3 * grey),
    ],
)
def test_brightness_contrast_and_saturation_are_scaled(change: str, wanted: Callable[..., Tensor]) -> None:
    images = pictures(3, (5, 5))
    answer = getattr(augmentation, change)(images, torch.tensor([0.7, 1.0, 0.7]).view(-1, 1, 1, 1))
    red, green, blue = images[2]
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    assert torch.allclose(answer[2], wanted(images[2], grey), atol=1e-6)
    assert torch.equal(answer[1], images[1])


def test_the_amounts_of_a_jitter_are_spread_over_their_range() -> None:
    images = torch.full((MANY, 3, 1, 1), 0.5)
    factors = 2 * colour_jitter(images, generator(), contrast=0, saturation=0, hue=0, p=1.0)[:, 0, 0, 0]
    assert 0.6 <= factors.min() < 0.61
    assert 1.39 < factors.max() <= 1.4
    assert abs(factors.mean() - 1) < 5 * 0.8 / math.sqrt(12 * MANY)


def test_the_order_of_changes_is_drawn_for_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brightness after greater contrast is something else than before it."""
    monkeypatch.setattr(augmentation, "_brighter", lambda images, _: images * 0 + 0.25)
    monkeypatch.setattr(augmentation, "_with_contrast", lambda images, _: images * 0 + 0.75)
    last = colour_jitter(copies(MANY, (2, 2)), generator(), saturation=0, hue=0, p=1.0)[:, 0, 0, 0]
    assert about(int((last < 0.5).sum()), MANY, 0.5)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.rand(2, 1, 8, 8), r"\[2, 1, 8, 8\]"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "uint8"),
        (torch.rand(3, 8, 8), r"\[3, 8, 8\]"),
        (torch.rand(2, 3, 8, 8) * 2 - 1, r"in \[0, 1\]; got -"),
        (torch.full((2, 3, 8, 8), math.nan), "nan"),
    ],
)
def test_strong_refuses_what_is_not_a_colour_image_before_normalisation(images: Tensor, words: str) -> None:
    with pytest.raises(ff.InputError, match=words):
        strong(images, generator())


def test_a_slanted_drawing_is_the_drawing_where_nothing_is_drawn() -> None:
    images = pictures(4)
    still = affine(images, generator(), turn=0.0, stretch=0.0, slant=0.0, move=0.0)
    assert torch.allclose(still, images, atol=1e-5)


def test_a_drawing_is_turned_stretched_and_moved_within_bounds() -> None:
    dot = torch.zeros(MANY, 1, 41, 41)
    dot[:, :, 20, 32] = 1.0  # twelve to the right of the middle
    seen = affine(dot, generator(), move=0.0, slant=0.0)
    rows, columns = torch.meshgrid(torch.arange(41.0) - 20, torch.arange(41.0) - 20, indexing="ij")
    mass = seen.flatten(1).sum(1)
    down = (seen[:, 0] * rows).flatten(1).sum(1) / mass
    right = (seen[:, 0] * columns).flatten(1).sum(1) / mass
    reach, angle = (down.square() + right.square()).sqrt(), torch.atan2(down, right).rad2deg()
    assert 8 < angle.abs().max() < 12.3  # ten degrees of an image that is stretched along one axis alone
    assert 12 / 1.1 - 0.7 < reach.min() < reach.max() < 12 / 0.9 + 0.7
    moved = affine(dot, generator(), turn=0.0, stretch=0.0, slant=0.0)
    middle = (moved[:, 0] * columns).flatten(1).sum(1) / moved.flatten(1).sum(1)
    assert (middle - 12).abs().max() <= 0.06 * 41 + 0.1
