"""Growth with tasks: what is read off the blocks of all masks is what the first masks take by themselves."""

import json

import numpy as np
import pytest

from forgetfree.codec import ans, context, huffman
from forgetfree.lab.analyses import codes


@pytest.fixture
def masks():
    draw = np.random.default_rng(0)
    return draw.random((9, 40, 30)) < 0.2


@pytest.fixture
def weights():
    return np.random.default_rng(1).standard_normal((40, 30)).astype(np.float32)


def test_all_numbers_of_tasks_are_measured_where_there_are_few():
    assert codes.points(4, 4) == codes.points(4, 10) == [1, 2, 3, 4]


def test_of_many_tasks_an_even_choice_is_measured_with_the_first_and_the_last():
    assert codes.points(41, 5) == [1, 11, 21, 31, 41]
    assert codes.points(100, 20)[0] == 1
    assert codes.points(100, 20)[-1] == 100
    assert len(set(codes.points(21, 20))) == 20


def test_used_weights_are_those_of_the_first_tasks():
    masks = np.array([[1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 0, 1, 0, 1]], bool)
    assert codes.used_weights(masks, [1, 2, 3]) == [2, 3, 4]
    assert codes.used_weights(masks, [1, 3]) == [2, 4]


@pytest.mark.parametrize(
    ("code", "codec"),
    [("huffman 2", huffman(2)), ("huffman 7", huffman(7)), ("ans 7", ans(7)), ("context", context())],
)
def test_growth_is_what_the_first_masks_take_by_themselves(masks, weights, code, codec):
    counted = [1, 2, 6, 7, 8, 9]
    expected = [sum(map(len, codec.encode(masks[:t], weights))) for t in counted]
    assert codes.mask_bytes(masks, weights, counted)[code] == expected


def test_raw_masks_take_a_bit_for_each_weight_and_task(masks, weights):
    assert codes.mask_bytes(masks, weights, [1, 9])["raw"] == [150, 1350]


@pytest.mark.parametrize("method", ["wsn", "packnet"])
def test_archives_of_fewer_tasks_are_written_and_the_learner_stays(finished, method):
    subject = finished(method)
    done = []
    found = json.loads(json.dumps(codes.analyse(subject, done.append)))
    assert found["tasks"] == found["archived"] == [1, 2, 3]
    assert found["archive"]["masks"] == found["masks"]["context"]
    assert found["archive"]["weights"] == found["weights"]
    assert found["archive"]["file"][-1] == subject.folder.archive.stat().st_size == subject.record.archive["bytes"]
    assert found["archive"]["file"] == sorted(found["archive"]["file"])
    assert len(subject.learner.tasks) == 3
    assert done == sorted(done)
    assert done[-1] == 1.0


def test_an_archive_without_the_last_tasks_is_as_large_as_one_that_never_had_them(finished):
    found = codes.analyse(finished("wsn"), lambda part: None)["archive"]
    alone = finished("wsn", tasks=1).record.archive["sections"]
    assert {part: found[part][0] for part in alone if part != "manifest"} == {
        part: nbytes for part, nbytes in alone.items() if part != "manifest"
    }
    assert found["manifest"][0] == pytest.approx(alone["manifest"], rel=0.05)
