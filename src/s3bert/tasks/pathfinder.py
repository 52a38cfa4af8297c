"""Pathfinder of the Long Range Arena: do two discs lie at the ends of one dashed curve? Images generated from a seed.

Source: Linsley et al. (2018), "Learning long-range spatial dependencies with horizontal gated recurrent units", at the
settings of Tay et al. (2021), "Long Range Arena", for 32 x 32 pixels at the hard level, `curv_contour_length_14`. This is a
re-creation from a description of the drawing, not the released images, which cannot be had: numbers measured on it
may be compared with one another, and with published ones only with that said.

An image shows two long curves of 14 dashes ("paddles"), up to five short ones of 4, and two discs. A curve grows
paddle by paddle where the occupancy of the image leaves room; a long pair that is stuck is begun again, hundreds of times
an image. So the occupancy alone is kept up while curves grow, and the image is drawn at the end.

Angles are in radians from the axis of columns towards that of rows, lengths in pixels, positions (row, column).
"""

import itertools
import math
import random
from bisect import bisect
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw


GENERATOR_VERSION = 2  # raised when the same seed gives other images, so that no folder holds both

SIZE = 32
LONG_PADDLES, SHORT_PADDLES, DISTRACTORS = 14, 4, 5
LENGTH, MARGIN = 2, 1  # of a paddle; it is half a pixel thick
DISTANCE = 7  # between the starts of the two long curves
LONG_BRIGHTNESS, SHORT_BRIGHTNESS = 1.5, 2.0  # a disc has 1
DISC_RADIUS = 1.5
PADDLE_DRAWS, DISTRACTOR_DRAWS = 3, 5

SCALE = 2  # stamps are drawn this much larger, then shrunk
REACH = 4  # of a stamp, (9, 9), to each side of its centre
# Occupancy is counted in 1/255, the steps of a stamp. Two paddles that together come to 1.8 anywhere collide.
FULL, COLLISION, NEARLY_FREE = 255, round(1.8 * 255), int(0.3 * 255)
LEAST_WEIGHT = 1e-4
# Kept around the image, so that no stamp needs cutting: a curve fails before it gets further out, and what reaches out
# collides with the frame of the image first.
BORDER = 8
WIDTH = SIZE + 2 * BORDER
INSIDE = slice(BORDER, BORDER + SIZE)


class Paddle(NamedTuple):
    """A dash from (row, column), `LENGTH` along `angle`."""

    row: int
    column: int
    angle: float


@dataclass(frozen=True)
class _Stamp:
    """A paddle drawn around the place it is put at; values in 1/255.

    `line` and `occupancy` are (9, 9) uint8; `near`, (11, 11), is the occupancy with a pixel more around. `collisions` are the
    places, counted along the rows of a board, where something can collide with it, each with the least value that does.
    """

    line: np.ndarray
    occupancy: np.ndarray
    near: np.ndarray
    collisions: tuple[tuple[int, int], ...]


class _Candidate(NamedTuple):
    """Where a paddle may end, from the pivot of its curve; `place` is (row, column) counted along the rows of a board."""

    row: int
    column: int
    place: int
    angle: float
    weight: float


@dataclass(frozen=True)
class Scene:
    """What an image shows: paddles of the long curves and of the distractors, discs as (row, column), label, and how many
    pairs of long curves were begun for the one that came to its end. A curve's first paddle points away from its origin,
    which is where that paddle begins; the others point back along the curve, so that it ends where its last one begins."""

    curves: tuple[tuple[Paddle, ...], tuple[Paddle, ...]]
    distractors: tuple[tuple[Paddle, ...], ...]
    discs: tuple[tuple[int, int], tuple[int, int]]
    label: int
    attempts: int


def _moved(row: int, column: int, angle: float, distance: float) -> tuple[int, int]:
    """Both coordinates are rounded up."""
    return math.ceil(row + distance * math.sin(angle)), math.ceil(column + distance * math.cos(angle))


def _dilated(canvas: np.ndarray, radius: int) -> np.ndarray:
    """The greatest value within `radius` of each pixel; (n, n) to (n, n)."""
    around = np.pad(canvas, radius)
    steps = range(-radius, radius + 1)
    height, width = canvas.shape
    return np.maximum.reduce(
        [
            around[radius + row : radius + row + height, radius + column : radius + column + width]
            for row in steps
            for column in steps
            if row**2 + column**2 <= radius**2
        ]
    )


def _shrunk(canvas: np.ndarray, size: int) -> np.ndarray:
    """A canvas whose least value is 0 and greatest 255, to (size, size) uint8."""
    return np.asarray(Image.fromarray(canvas).resize((size, size), Image.Resampling.LANCZOS))


@cache
def _stamp(angle: float) -> _Stamp:
    half = SCALE * (LENGTH + 1 + MARGIN)
    image = Image.new("L", (2 * half + 1, 2 * half + 1))
    end_row, end_column = _moved(half, half, angle, SCALE * LENGTH)
    ImageDraw.Draw(image).line([(half, half), (end_column, end_row)], fill=255, width=1)
    canvas = np.asarray(image)
    occupancy = _shrunk(_dilated(canvas, SCALE * MARGIN), 2 * REACH + 1)
    rows, columns = np.nonzero(occupancy >= COLLISION - FULL)
    places = (rows - REACH) * WIDTH + columns - REACH
    least = COLLISION - occupancy[rows, columns].astype(int)
    return _Stamp(
        line=_shrunk(canvas, 2 * REACH + 1),
        occupancy=occupancy,
        near=_dilated(np.pad(occupancy, MARGIN), MARGIN),
        collisions=tuple(zip(places.tolist(), least.tolist())),
    )


@cache
def _disc(row: int, column: int) -> np.ndarray:
    """(SIZE, SIZE) uint8."""
    rows, columns = np.mgrid[: SCALE * SIZE, : SCALE * SIZE]
    distance = np.hypot(rows - SCALE * row, columns - SCALE * column)
    return _shrunk(np.where(distance <= SCALE * DISC_RADIUS, FULL, 0).astype(np.uint8), SIZE)


@cache
def _candidates(angle: float) -> tuple[_Candidate, ...]:
    """The ends that the next paddle of a curve with this angle may have: a circle around its pivot, cut to whole pixels."""
    radius = LENGTH + MARGIN
    around = np.arange(0, 2 * math.pi, 1 / radius)  # a pixel apart
    ends = {(math.floor(radius * math.sin(turn)), math.floor(radius * math.cos(turn))): None for turn in around}
    candidates = []
    for row, column in ends:
        own = math.atan2(row, column)
        turn = abs(math.remainder(own - angle, 2 * math.pi))
        if turn < math.pi / 2:  # the weight of all others is zero
            candidates.append(_Candidate(row, column, row * WIDTH + column, own, math.cos(turn) ** 2))
    return tuple(candidates)


@cache
def _footprint(angle: float) -> tuple[tuple[int, int], ...]:
    """The pixels, from the start of a curve, that must be free for it to start with this angle; none if it never may.

    The original sets the stamp one pixel off the centre of a square that cuts it, and dilates the occupancy with that. Where
    the square's pixels lie to one side, all of them fall outside the image at one of its corners; its library then returns
    the least number there is, which the search for free pixels takes for a failure. So most angles never start a curve.
    """
    half = LENGTH + MARGIN
    square = _stamp(angle).occupancy[: 2 * half + 1, : 2 * half + 1]
    pixels = np.argwhere(square == FULL) - half
    at_corners = [((pixels * inwards) >= 0).all(1).any() for inwards in itertools.product((1, -1), repeat=2)]
    return tuple(map(tuple, pixels)) if all(at_corners) else ()


@cache
def _central_starts(angle: float) -> tuple[tuple[int, int], ...]:
    """Where the first long curve may start with this angle: its footprint stays within what `DISTANCE` leaves at the centre."""
    centre, footprint = range(2 * DISTANCE, SIZE - 2 * DISTANCE), _footprint(angle)
    return tuple(
        (row, column)
        for row in range(SIZE)
        for column in range(SIZE)
        if footprint and all(row + down in centre and column + right in centre for down, right in footprint)
    )


class _Board:
    """The occupancy of an image with `BORDER` around it.

    `taken` is the occupancy itself, `near` the greatest within a pixel, and so what makes a place a bad end for a paddle; both
    (WIDTH, WIDTH) uint8 and, for quick reading of single places, as flat memory.
    """

    def __init__(self, taken: np.ndarray, near: np.ndarray):
        self.taken, self.near = taken.copy(), near.copy()
        self.flat_taken, self.flat_near = memoryview(self.taken.reshape(-1)), memoryview(self.near.reshape(-1))

    def copy(self) -> "_Board":
        return _Board(self.taken, self.near)

    def add(self, paddle: Paddle) -> None:
        stamp = _stamp(paddle.angle)
        for values, patch, reach in ((self.taken, stamp.occupancy, REACH), (self.near, stamp.near, REACH + MARGIN)):
            top, left = paddle.row + BORDER - reach, paddle.column + BORDER - reach
            place = values[top : top + 2 * reach + 1, left : left + 2 * reach + 1]
            np.maximum(place, patch, out=place)

    def starts(self, angle: float) -> np.ndarray:
        """Where a distractor may start with this angle, counted along the rows of the image."""
        if not _footprint(angle):
            return np.empty(0, int)
        inside = np.pad(self.taken[INSIDE, INSIDE], BORDER)  # without what stamps left outside
        shifted = [
            inside[BORDER + down : BORDER + down + SIZE, BORDER + right : BORDER + right + SIZE]
            for down, right in _footprint(angle)
        ]
        return np.flatnonzero(np.maximum.reduce(shifted) <= NEARLY_FREE)


def _empty_board() -> _Board:
    taken = np.zeros((WIDTH, WIDTH), np.uint8)
    taken[INSIDE, INSIDE] = FULL
    taken[BORDER + 1 : BORDER + SIZE - 1, BORDER + 1 : BORDER + SIZE - 1] = 0
    near = _dilated(taken, MARGIN)
    # What lies outside the image is no place for a paddle's end.
    outside = np.ones((WIDTH, WIDTH), bool)
    outside[INSIDE, INSIDE] = False
    near[outside] = FULL
    return _Board(taken, near)


_EMPTY = _empty_board()


class _Curve:
    """A curve that grows: its paddles, and the pivot and the angle that the next one starts from."""

    def __init__(self, row: int, column: int, angle: float):
        self.paddles = [Paddle(row, column, angle)]
        head = _moved(row, column, angle, LENGTH)
        self.pivot = _moved(*head, angle + math.pi, LENGTH + MARGIN)
        self.angle = angle
        self.starts_inside = all(0 <= place < SIZE for place in (*head, *self.pivot))

    def extend(self, board: _Board, generator: random.Random) -> bool:
        """Adds a paddle, and the one before it to the board: neighbours may touch. False if there is no room."""
        row, column = _moved(*self.pivot, self.angle, LENGTH + 2 * MARGIN)
        pivot = (row + BORDER) * WIDTH + column + BORDER
        candidates = _candidates(self.angle)
        near, taken = board.flat_near, board.flat_taken
        sums = list(itertools.accumulate([one.weight * (FULL - near[pivot + one.place]) for one in candidates]))
        if sums[-1] < LEAST_WEIGHT * FULL:
            return False
        for _ in range(PADDLE_DRAWS):
            chosen = candidates[bisect(sums, generator.random() * sums[-1])]
            head, back = pivot + chosen.place, chosen.angle + math.pi
            if all(taken[head + place] < least for place, least in _stamp(back).collisions):
                board.add(self.paddles[-1])
                self.paddles.append(Paddle(row + chosen.row, column + chosen.column, back))
                self.pivot, self.angle = (row, column), chosen.angle
                return True
        return False


def _whole_degrees(generator: random.Random) -> float:
    return math.radians(generator.randrange(360))


def _try_pair(generator: random.Random) -> tuple[_Board, _Curve, _Curve] | None:
    angle = _whole_degrees(generator)
    if not _central_starts(angle):
        return None
    row, column = generator.choice(_central_starts(angle))
    first = _Curve(row, column, angle)  # so near the centre that both start inside
    direction = generator.uniform(0, 2 * math.pi)
    second = _Curve(
        round(row + DISTANCE * math.sin(direction)),
        round(column + DISTANCE * math.cos(direction)),
        _whole_degrees(generator),
    )
    board = _EMPTY.copy()
    for _ in range(LONG_PADDLES - 1):
        for curve in (first, second):
            if not curve.extend(board, generator):
                return None
    board.add(second.paddles[-1])  # and not that of the first: so the original has it
    return board, first, second


def _try_distractor(board: _Board, generator: random.Random) -> _Curve | None:
    """Adds nothing to the board."""
    for _ in range(PADDLE_DRAWS):
        angle = _whole_degrees(generator)
        starts = board.starts(angle)
        if not starts.size:
            return None
        curve = _Curve(*divmod(int(generator.choice(starts)), SIZE), angle)
        if curve.starts_inside:
            break
    else:
        return None
    aside = board.copy()
    if all(curve.extend(aside, generator) for _ in range(SHORT_PADDLES - 1)):
        return curve
    return None


def draw_scene(seed: int, index: int) -> Scene:
    """What `draw_image` draws."""
    generator = random.Random(f"pathfinder {seed} {index}")
    attempts = 1
    while (pair := _try_pair(generator)) is None:
        attempts += 1
    board, *curves = pair
    distractors = []
    for _ in range(DISTRACTORS):
        for _ in range(DISTRACTOR_DRAWS):
            if curve := _try_distractor(board, generator):
                for paddle in curve.paddles:
                    board.add(paddle)
                distractors.append(tuple(curve.paddles))
                break
    origin, label = generator.randrange(2), generator.randrange(2)
    terminal = origin if label else 1 - origin
    return Scene(
        curves=(tuple(curves[0].paddles), tuple(curves[1].paddles)),
        distractors=tuple(distractors),
        discs=(curves[origin].paddles[0][:2], curves[terminal].paddles[-1][:2]),
        label=label,
        attempts=attempts,
    )


def _drawn(scene: Scene) -> np.ndarray:
    """The image of a scene, (SIZE, SIZE) uint8, stretched so that its greatest value is 255."""
    image = np.zeros((WIDTH, WIDTH))
    for curves, brightness in ((scene.curves, LONG_BRIGHTNESS), (scene.distractors, SHORT_BRIGHTNESS)):
        for row, column, angle in (paddle for curve in curves for paddle in curve):
            top, left = row + BORDER - REACH, column + BORDER - REACH
            place = image[top : top + 2 * REACH + 1, left : left + 2 * REACH + 1]
            np.maximum(place, brightness * _stamp(angle).line, out=place)
    image = np.maximum.reduce([image[INSIDE, INSIDE], *(_disc(*disc) for disc in scene.discs)])
    return np.rint((image - image.min()) * (255 / (image.max() - image.min()))).astype(np.uint8)


def draw_image(seed: int, index: int) -> tuple[np.ndarray, int]:
    """One image, (32, 32) uint8 with its least value 0 and its greatest 255, and its label.

    The label is 1 if the discs lie at the two ends of one curve, 0 if they lie at ends of different ones. Nothing but
    `seed` and `index` matters, so images can be drawn in any order and by any process.
    """
    scene = draw_scene(seed, index)
    return _drawn(scene), scene.label
