"""Pathfinder's images in files: shards written atomically, by several processes."""

import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from s3bert.files import replacing, write_text

from .labels import check_labels
from .pathfinder import GENERATOR_VERSION, SIZE, draw_image


MANIFEST = "pathfinder.json"
OFFICIAL_SIZES = {"train": 160_000, "val": 20_000, "test": 20_000}  # images
_REMEDY = "call s3bert prepare-lra --task_name pathfinder as before, and it draws what is missing."


def _shards(size: int, shard_size: int) -> list[int]:
    """How many images each shard of a split holds."""
    return [min(shard_size, size - first) for first in range(0, size, shard_size)]


def _shard_file(folder: Path, split: str, number: int) -> Path:
    return folder / f"{split}-{number:05d}.npy"


def _read_shard(file: Path, count: int) -> np.ndarray:
    """(count, 1 + SIZE * SIZE) uint8, label first.

    Raises:
        ValueError: with the file: it is missing, damaged, or holds something else.
    """
    try:
        rows = np.load(file, allow_pickle=False)
    except FileNotFoundError:
        raise ValueError(f"{file} is missing: {_REMEDY}") from None
    except Exception as error:  # a damaged header makes np.load raise almost anything
        raise ValueError(f"{file} is damaged ({error}): {_REMEDY}") from error
    wanted = (count, 1 + SIZE * SIZE)
    if not isinstance(rows, np.ndarray) or rows.shape != wanted or rows.dtype != np.uint8:
        raise ValueError(
            f"{file} does not hold {count} labels of 0 or 1, each with {SIZE * SIZE} pixels, as uint8 {wanted}: {_REMEDY}"
        )
    check_labels(rows[:, 0].tolist(), 2, str(file), remedy=f"To mend it, {_REMEDY}")
    return rows


def _is_whole(file: Path, count: int) -> bool:
    try:
        _read_shard(file, count)
    except ValueError:
        return False
    return True


def _write_shard(file: Path, seed: int, first: int, count: int) -> None:
    rows = np.empty((count, 1 + SIZE * SIZE), np.uint8)
    for row, index in enumerate(range(first, first + count)):
        image, rows[row, 0] = draw_image(seed, index)
        rows[row, 1:] = image.reshape(-1)
    with replacing(file) as aside, aside.open("wb") as stream:
        np.save(stream, rows, allow_pickle=False)


def _end_with_parent() -> None:
    """Lets a process of the pool end when the one that started it is killed: left alone it would wait for work for ever."""

    def wait() -> None:
        parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def write_pathfinder(
    folder: Path,
    sizes: Mapping[str, int] = OFFICIAL_SIZES,
    seed: int = 0,
    num_workers: int | None = None,
    shard_size: int = 1000,
) -> None:
    """Writes images in shards, `train-00000.npy` and so on; called again after a kill, it makes what is missing or damaged.

    A shard is (images, 1025) uint8, the label first, then the pixels row by row. The splits take the images of `seed`
    one after the other, so that none is in two. One call at a time may write into a folder.

    Args:
        sizes: images by split. num_workers: processes, as many as there are processors unless told; 1 starts none.
        shard_size: images a shard, which is what a kill may lose.

    Raises:
        ValueError: the folder holds images of other arguments, or its description is damaged.
    """
    wanted = {"generator": GENERATOR_VERSION, "seed": seed, "sizes": dict(sizes), "shard_size": shard_size}
    if (folder / MANIFEST).exists():
        found = _read_manifest(folder)
        if found != wanted:
            raise ValueError(f"{folder} holds images of {found}, not of {wanted}; choose another --output_dir.")
    else:
        write_text(folder / MANIFEST, json.dumps(wanted, indent=2) + "\n")
    work, first = [], 0
    for split, size in sizes.items():
        for number, count in enumerate(_shards(size, shard_size)):
            work.append((_shard_file(folder, split, number), seed, first, count))
            first += count
    missing = [shard for shard in work if not _is_whole(shard[0], shard[3])]
    with tqdm(total=len(work), initial=len(work) - len(missing), desc="Pathfinder", unit=" shards") as bar:
        if num_workers == 1:
            for shard in missing:
                _write_shard(*shard)
                bar.update()
        elif missing:
            with ProcessPoolExecutor(num_workers, get_context("spawn"), _end_with_parent) as pool:
                try:
                    for shard in as_completed([pool.submit(_write_shard, *shard) for shard in missing]):
                        shard.result()
                        bar.update()
                except BaseException:
                    pool.shutdown(cancel_futures=True)  # rather than drawing for hours before the error is seen
                    raise


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        counts = [manifest["shard_size"], *manifest["sizes"].values()]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder} holds no Pathfinder images: {file} is missing; draw them with s3bert prepare-lra --task_name "
            "pathfinder."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): draw the images again in another folder.") from error
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise ValueError(
            f"{file} is damaged: shard_size and sizes must be numbers above 0; draw the images again in another folder."
        )
    return manifest


def read_pathfinder(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The images of one split of a folder that `write_pathfinder` made.

    Returns:
        Pixels, (images, 1024) uint8, row by row, and labels, (images,) uint8 of 0 or 1.

    Raises:
        FileNotFoundError: there is no such folder, or nothing of `write_pathfinder` in it.
        ValueError: no such split; with the file: a shard that is missing or damaged.
    """
    manifest = _read_manifest(folder)
    if split not in manifest["sizes"]:
        raise ValueError(f"{folder} has no split {split!r}, only {', '.join(manifest['sizes'])}")
    counts = _shards(manifest["sizes"][split], manifest["shard_size"])
    rows = np.concatenate(
        [_read_shard(_shard_file(folder, split, number), count) for number, count in enumerate(counts)]
    )
    return rows[:, 1:], rows[:, 0]
