"""Pathfinder: scenes against the rules they are drawn by, statistics, labels, and writing that is killed or damaged."""

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import grey_dilation

from s3bert.tasks.pathfinder import (
    LONG_PADDLES,
    SHORT_PADDLES,
    SIZE,
    Paddle,
    Scene,
    _candidates,
    _footprint,
    _stamp,
    draw_image,
    draw_scene,
)
from s3bert.tasks.pathfinder_files import read_pathfinder, write_pathfinder


processes = multiprocessing.get_context("fork")  # the child starts at once; its own workers are spawned

SIZES = {"train": 10, "val": 4, "test": 3}
SHARDS = ["test-00000.npy", "train-00000.npy", "train-00001.npy", "train-00002.npy", "val-00000.npy"]
CROSS = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], bool)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(0, index) for index in range(100)]


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.stack([draw_image(0, index)[0] for index in range(100)])


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pathfinder")
    write_pathfinder(folder, SIZES, seed=3, num_workers=1, shard_size=4)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def occupancy(paddle: Paddle) -> np.ndarray:
    """A paddle's occupancy from 0 to 1 in an empty image, pixel by pixel."""
    stamp, image = _stamp(paddle.angle).occupancy, np.zeros((SIZE, SIZE))
    for row in range(SIZE):
        for column in range(SIZE):
            down, right = row - paddle.row + 4, column - paddle.column + 4
            if 0 <= down < 9 and 0 <= right < 9:
                image[row, column] = stamp[down, right] / 255
    return image


def framed() -> np.ndarray:
    image = np.ones((SIZE, SIZE))
    image[1:-1, 1:-1] = 0
    return image


def replay(curves: list[tuple[Paddle, ...]], taken: np.ndarray) -> np.ndarray:
    """Grows curves of the same length in turns, with whole images of floats, and asserts that each paddle was allowed."""
    for number in range(1, len(curves[0])):
        for curve in curves:
            paddle = curve[number]
            near = grey_dilation(taken, footprint=CROSS, mode="constant")
            assert near[paddle.row, paddle.column] < 1
            assert (taken + occupancy(paddle)).max() < 1.8
            taken = np.maximum(taken, occupancy(curve[number - 1]))
    return taken


def end(paddle: Paddle) -> tuple[float, float]:
    return paddle.row + 2 * math.sin(paddle.angle), paddle.column + 2 * math.cos(paddle.angle)


def test_an_image_depends_on_seed_and_index_alone():
    first = {index: draw_image(4, index) for index in range(3)}
    for index in (2, 0, 1):
        again, label = draw_image(4, index)
        np.testing.assert_array_equal(again, first[index][0])
        assert label == first[index][1]
        assert again.shape == (32, 32)
        assert again.dtype == np.uint8
    assert not np.array_equal(first[0][0], first[1][0])
    assert not np.array_equal(first[0][0], draw_image(5, 0)[0])


def test_every_paddle_was_allowed_where_it_lies(scenes):
    for scene in scenes[:8]:
        taken = replay(list(scene.curves), framed())
        taken = np.maximum(taken, occupancy(scene.curves[1][-1]))  # not that of the first curve
        for distractor in scene.distractors:
            replay([distractor], taken)
            for paddle in distractor:
                taken = np.maximum(taken, occupancy(paddle))


def test_a_scene_has_two_long_curves_from_the_centre_and_up_to_five_short_ones(scenes):
    for scene in scenes:
        assert [len(curve) for curve in scene.curves] == [LONG_PADDLES] * 2
        assert {len(distractor) for distractor in scene.distractors} <= {SHORT_PADDLES}
        first, second = (curve[0] for curve in scene.curves)
        assert {first.row, first.column} <= set(range(12, 20))
        assert math.dist(first[:2], second[:2]) == pytest.approx(7, abs=0.75)  # rounded to whole pixels
        for paddle in (distractor[0] for distractor in scene.distractors):
            assert all(-1 <= place <= SIZE - 1 for place in end(paddle))  # rounded up, they are inside
    counts = [len(scene.distractors) for scene in scenes]
    assert max(counts) > 1


def test_paddles_follow_one_another_closely_and_turn_by_less_than_a_right_angle(scenes):
    for scene in scenes:
        for curve in (*scene.curves, *scene.distractors):
            for number, (before, after) in enumerate(pairwise(curve)):
                # The first paddle points along the curve and lies at its start; the others lie at their far end.
                ahead, last = (before.angle, end(before)) if number == 0 else (before.angle + math.pi, before[:2])
                turn = abs(math.remainder(after.angle + math.pi - ahead, 2 * math.pi))
                assert turn < math.pi / 2
                assert math.dist(last, end(after)) < 5


def test_straight_on_is_the_likeliest_way_and_backwards_none():
    for degrees in range(0, 360, 15):
        angle = math.radians(degrees)
        weights = {(one.row, one.column): one.weight for one in _candidates(angle)}
        assert all(math.hypot(*place) < 4.3 for place in weights)
        for (row, column), weight in weights.items():
            cosine = (row * math.sin(angle) + column * math.cos(angle)) / math.hypot(row, column)
            assert cosine > 0
            assert weight == pytest.approx(cosine**2)


def test_the_discs_lie_at_the_ends_of_one_curve_or_of_two_as_the_label_says(scenes):
    origins = set()
    for index, scene in enumerate(scenes):
        starts, ends = ([curve[place][:2] for curve in scene.curves] for place in (0, -1))
        first, second = scene.discs
        origin = starts.index(first)
        origins.add((origin, scene.label))
        assert second == ends[origin if scene.label == 1 else 1 - origin]
        image, label = draw_image(0, index)
        assert label == scene.label
        for row, column in scene.discs:
            # The lines alone never fill a square of two by two.
            assert image[row - 1 : row + 1, column - 1 : column + 1].min() > 150
    assert origins == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_labels_are_balanced(scenes):
    # 4 standard deviations of 100 draws are 20.
    assert 30 <= sum(scene.label for scene in scenes) <= 70


def test_the_images_have_the_statistics_of_the_original_program(scenes, images):
    """Its own, of 800 images: mean 20.3, standard deviation 51.2, two thirds of zeros, 150 to 350 pairs begun for one that ends.
    5 standard errors of 100 images are allowed."""
    assert (images.max(axis=(1, 2)) == 255).all()
    assert (images.min(axis=(1, 2)) == 0).all()
    assert images.mean() == pytest.approx(20.3, abs=5 * 0.20)
    assert images.std() == pytest.approx(51.2, abs=5 * 0.25)
    assert (images == 0).mean() == pytest.approx(0.66, abs=5 * 0.004)
    assert (
        150 < np.mean([scene.attempts for scene in scenes]) < 500
    )  # geometric: its standard error is a tenth of the mean


def test_curves_start_at_angles_alone_whose_footprint_meets_the_image_everywhere():
    """Dilation that knows nothing but the image finds no value where the whole footprint falls outside."""
    starting = [degrees for degrees in range(360) if _footprint(math.radians(degrees))]
    for degrees in range(360):
        square = _stamp(math.radians(degrees)).occupancy[:7, :7] == 255
        dilated = grey_dilation(np.zeros((SIZE, SIZE)), footprint=square[::-1, ::-1], mode="constant", cval=-np.inf)
        assert np.isfinite(dilated).all() == (degrees in starting)
    assert 0 < len(starting) < 360


def test_what_is_written_is_read_back_as_drawn_split_after_split(written):
    assert sorted(contents(written)) == ["pathfinder.json", *SHARDS]
    index = 0
    for split, size in SIZES.items():
        pixels, labels = read_pathfinder(written, split)
        assert pixels.shape == (size, 1024)
        assert pixels.dtype == labels.dtype == np.uint8
        assert labels.shape == (size,)
        for row, found in zip(pixels, labels):
            image, label = draw_image(3, index)
            np.testing.assert_array_equal(row.reshape(32, 32), image)
            assert found == label
            index += 1


def has_ended(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].startswith("Z")
    except OSError:
        return True


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_killed_writing_goes_on_and_ends_with_the_same_files(tmp_path):
    sizes, killed, straight = {"train": 298}, tmp_path / "killed", tmp_path / "straight"
    child = processes.Process(target=write_pathfinder, args=(killed, sizes, 3, 2, 5))
    child.start()
    wait_for(lambda: len(list(killed.glob("train-*.npy"))) > 1 or not child.is_alive())
    workers = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert len(workers) >= 2
    wait_for(lambda: all(map(has_ended, workers)))
    made = {file: file.stat().st_mtime_ns for file in killed.glob("train-*.npy")}
    assert 1 < len(made) < 60
    with pytest.raises(ValueError, match=r"train-\d{5}.npy is missing"):
        read_pathfinder(killed, "train")

    for folder in (killed, straight):
        write_pathfinder(folder, sizes, seed=3, num_workers=1, shard_size=5)
    assert all(file.stat().st_mtime_ns == when for file, when in made.items())
    assert len(contents(straight)) == 61
    assert contents(killed) == contents(straight)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda file, whole: file.unlink(), "is missing"),
        (lambda file, whole: file.write_bytes(b""), "is damaged"),
        (lambda file, whole: file.write_bytes(whole[:50]), "is damaged"),
        (lambda file, whole: file.write_bytes(whole[:-1]), "is damaged"),
        (lambda file, whole: file.write_bytes(b"PK\x03\x04" + whole), "is damaged"),
        (lambda file, whole: file.write_bytes(bytes(len(whole))), "is damaged"),
        (lambda file, whole: np.save(file, np.zeros((4, 1025))), "does not hold 4 labels"),
        (lambda file, whole: np.save(file, np.zeros((3, 1025), np.uint8)), "does not hold 4 labels"),
        (
            lambda file, whole: np.save(file, np.full((4, 1025), 2, np.uint8)),
            "row 0: label 2, which must be one of 0 to 1",
        ),
        (lambda file, whole: np.save(file, np.array([{}]), allow_pickle=True), "is damaged"),
    ],
)
def test_a_damaged_shard_is_an_error_with_its_name_and_is_made_anew(written, damage, reason):
    file = written / "train-00001.npy"
    whole = file.read_bytes()
    damage(file, whole)
    with pytest.raises(
        ValueError, match=rf"train-00001.npy,? {reason}.*call s3bert prepare-lra --task_name pathfinder"
    ):
        read_pathfinder(written, "train")
    read_pathfinder(written, "val")
    write_pathfinder(written, SIZES, seed=3, num_workers=1, shard_size=4)
    assert file.read_bytes() == whole


def test_a_missing_folder_and_an_unknown_split_are_errors(written, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"holds no Pathfinder images: .*pathfinder.json is missing; draw .* s3bert prep"
    ):
        read_pathfinder(tmp_path / "nowhere", "train")
    with pytest.raises(ValueError, match="no split 'dev', only train, val, test"):
        read_pathfinder(written, "dev")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sizes": {"train": "many"}, "shard_size": 4}'])
def test_a_damaged_description_is_an_error(tmp_path, text):
    (tmp_path / "pathfinder.json").write_text(text)
    with pytest.raises(ValueError, match=r"pathfinder.json is damaged"):
        read_pathfinder(tmp_path, "train")


def test_a_folder_of_other_arguments_is_refused_and_left_as_it_is(written):
    before = contents(written)
    with pytest.raises(ValueError, match=r"holds images of .*'seed': 3.*choose another --output_dir"):
        write_pathfinder(written, SIZES, seed=4, num_workers=1, shard_size=4)
    assert contents(written) == before
