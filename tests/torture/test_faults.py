"""Faults, seeded: long commands that are killed, refused room, stopped, started twice, and find their files damaged.

After each the same command again must end with the files of a run that nothing disturbed, byte for byte.
"""

import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from children import Child, Fault, Outcome, tree
from long_commands import Commands

from s3bert.data.corpus import Corpus
from s3bert.training.checkpoints import all_checkpoints, find_checkpoint, validate_checkpoint


every_command = pytest.mark.parametrize("name", Commands.names)


def other_files(commands: Commands, name: str, folder: Path, outcome: Outcome, leaving_out: str | None) -> str | None:
    """What a run that came to its end left that an undisturbed one does not, in words; its folder goes."""
    if outcome.status != 0 or outcome.problem:
        return f"the same command again ends with status {outcome.status}: {outcome.output[-500:]}"
    whole, found = tree(commands.whole(name).folder, leaving_out=leaving_out), tree(folder, leaving_out=leaving_out)
    shutil.rmtree(folder)
    if missing := whole.keys() - found.keys():
        return f"missing: {sorted(missing)}"
    if added := found.keys() - whole.keys():
        return f"left over: {sorted(added)}"
    other = [file for file in whole if whole[file] != found[file]]
    return f"other bytes: {other}" if other else None


def rerun(commands: Commands, name: str, folder: Path, leaving_out: str | None = None) -> str | None:
    """What the same command again leaves that an undisturbed run does not."""
    return other_files(commands, name, folder, Child(name, commands.words(name), folder).wait(), leaving_out)


def in_order(outcome: Outcome, *statuses: int) -> str | None:
    """What is wrong with how a disturbed run ended, which may be with those statuses, 0, or 1 and an error in a line."""
    if outcome.problem is None and outcome.status not in (0, *statuses) and not (outcome.status == 1 and outcome.error):
        return f"status {outcome.status}: {outcome.output[-500:]}"
    return outcome.problem


def disturbed(commands: Commands, name: str, folder: Path, draw: random.Random) -> tuple[str, Outcome]:
    """A run that is killed before a call, in the midst of a write, or at a moment; which, and how it ended."""
    whole = commands.whole(name).outcome
    call, words = draw.randint(1, whole.calls), commands.words(name)
    kind = draw.choice(["call", "write", "moment"])
    if kind == "call":
        return f"{name}, killed before call {call}", Child(name, words, folder, Fault(call, signal.SIGKILL)).wait()
    if kind == "write":
        room = draw.choice([1, 100, 1000, 10_000])
        fault = Fault(call, signal.SIGXFSZ, room)
        return f"{name}, killed after {room} bytes from call {call}", Child(name, words, folder, fault).wait()
    moment = draw.uniform(0, whole.seconds)
    child = Child(name, words, folder)
    child.read(moment)
    child.send(signal.SIGKILL)
    return f"{name}, killed after {moment:.2f} s", child.wait()


@every_command
def test_killed_anywhere_the_same_command_ends_with_the_same_files(name, commands, campaign, fresh_folder):
    draw, killed = random.Random(f"kill {name}"), campaign.of("killed at a random call, write or moment")
    count, in_a_row = campaign.tries(1, 30), campaign.tries(1, 5)
    while killed.tries < count:
        folder, kills = fresh_folder(), []
        for _ in range(in_a_row):
            what, outcome = disturbed(commands, name, folder, draw)
            if outcome.status not in (-signal.SIGKILL, -signal.SIGXFSZ):
                problem = other_files(commands, name, folder, outcome, None)  # it came to its end before
                break
            kills.append(what)
        else:
            problem = rerun(commands, name, folder)
        assert kills or problem is None, problem
        for what in kills:
            killed.note(what if len(kills) == 1 else f"{what}, one of {kills}", problem)
    killed.check()


def test_a_disk_that_fills_is_an_error_in_a_line_and_the_same_command_goes_on(commands, campaign, fresh_folder):
    draw, full = random.Random("disk"), campaign.of("a disk that is full from a random call on")
    for name in campaign.chosen(draw, Commands.names, 2, 10):
        folder, calls = fresh_folder(), commands.whole(name).outcome.calls
        fault = Fault(draw.randint(1, calls), room=draw.choice([0, 0, 300, 3000, 20_000]))
        outcome = Child(name, commands.words(name), folder, fault).wait()
        problem = in_order(outcome) or rerun(commands, name, folder)
        full.note(f"{name}, no room beyond {fault.room} bytes from call {fault.call}", problem)
    full.check()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda number: number.name)
def test_asked_to_stop_at_any_moment_a_command_does_and_goes_on(number, commands, campaign, fresh_folder):
    draw, stopped = random.Random(number.name), campaign.of("SIGTERM, SIGINT or SIGUSR1 at a random moment or call")
    trainings = [name for name in Commands.names if name != "prepare-corpus"]
    for name in campaign.chosen(draw, trainings, 1, 4):
        folder, whole = fresh_folder(), commands.whole(name).outcome
        call, moment = draw.randint(1, whole.calls), draw.uniform(0.1, whole.seconds)
        if draw.random() < 0.5:
            what, child = f"call {call}", Child(name, commands.words(name), folder, Fault(call, number))
        else:
            what, child = f"{moment:.2f} s", Child(name, commands.words(name), folder)
            child.read(moment)
            child.send(number)
        outcome = child.wait()
        status = -number if number == signal.SIGUSR1 else 128 + number  # outside of training it has its usual effect
        problem = in_order(outcome, 128 + number, status) or rerun(commands, name, folder, leaving_out="checkpoint-")
        stopped.note(f"{name}, {number.name} at {what}", problem)
    stopped.check()


def test_two_starts_at_once_leave_the_files_of_one(commands, campaign, fresh_folder):
    draw, twice = random.Random("twice"), campaign.of("two starts at once")
    for name in campaign.chosen(draw, Commands.names, 1, 3):
        folder, late = fresh_folder(), draw.choice([0, draw.uniform(0, commands.whole(name).outcome.seconds)])
        first = Child(name, commands.words(name), folder)
        first.read(late)
        second = Child(name, commands.words(name), folder)
        outcomes = first.wait(), second.wait()
        problem = next(filter(None, map(in_order, outcomes)), None)
        if all(outcome.status for outcome in outcomes):
            problem = problem or f"both end in error: {[outcome.error for outcome in outcomes]}"
        twice.note(f"{name}, the second {late:.2f} s after the first", problem or rerun(commands, name, folder))
    twice.check()


def flipped(file: Path, place: int, draw: random.Random) -> bytes:
    """Another bit at a place of a file; returns the byte that was there."""
    with open(file, "r+b", buffering=0) as stream:
        stream.seek(place)
        before = stream.read(1)
        stream.seek(place)
        stream.write(bytes([before[0] ^ 1 << draw.randrange(8)]))
    return before


def put_back(file: Path, place: int, byte: bytes) -> None:
    with open(file, "r+b", buffering=0) as stream:
        stream.seek(place)
        stream.write(byte)


def flips(folder: Path, region: int, draw: random.Random) -> Iterator[str]:
    """Flips a bit in each region of so many bytes of each file, one after the other; says which, and puts it back after that."""
    for file in sorted(folder.iterdir()):
        size = file.stat().st_size
        for start in range(0, size, region):
            place = draw.randrange(start, min(size, start + region))
            byte = flipped(file, place, draw)
            yield f"{file.name}, byte {place}"
            put_back(file, place, byte)


def test_a_flipped_bit_in_any_region_of_a_checkpoint_is_found(commands, campaign, fresh_folder, caplog):
    caplog.set_level("ERROR")
    draw, found = random.Random("checkpoint"), campaign.of("a bit flipped in each region of a checkpoint")
    run = shutil.copytree(commands.whole("pretrain").folder / "run", fresh_folder())
    before, newest = all_checkpoints(run)
    assert find_checkpoint(run, "latest") == newest
    region = campaign.tries(512, 32)
    for where in flips(newest, region, draw):
        try:
            taken = find_checkpoint(run, "latest")
            problem = None if taken == before else f"{taken.name} is taken"
        except Exception as error:
            problem = repr(error)
        found.note(where, problem)
    assert validate_checkpoint(newest) is None
    found.check()


def test_a_flipped_bit_in_any_region_of_a_corpus_is_found(commands, campaign, fresh_folder):
    draw, found = random.Random("corpus"), campaign.of("a bit flipped in each region of a prepared corpus")
    folder = shutil.copytree(commands.whole("prepare-corpus").folder / "run", fresh_folder())

    def read() -> None:
        corpus = Corpus.open(folder)
        for split in ("train", "validation"):
            blocks = corpus.split(split)
            for number in range(len(blocks)):
                blocks[number]

    read()
    region = campaign.tries(64, 4)
    for where in flips(folder, region, draw):
        problem = "read as if it were whole"
        try:
            read()
        except (ValueError, OSError) as error:
            problem = None if "\n" not in str(error) else f"an error of several lines: {error}"
        except Exception as error:
            problem = repr(error)
        found.note(where, problem)
    read()
    found.check()


def test_a_command_that_finds_its_files_damaged_goes_on_or_says_so(commands, campaign, fresh_folder):
    draw, damaged = random.Random("damaged"), campaign.of("a file of an unfinished run emptied, cut or flipped")
    for name in campaign.chosen(draw, Commands.names, 1, 8):
        folder, calls = fresh_folder(), commands.whole(name).outcome.calls
        Child(name, commands.words(name), folder, Fault(draw.randint(calls // 4, calls), signal.SIGKILL)).wait()
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
        if not files:
            continue
        file, how = draw.choice(files), draw.choice(["emptied", "cut", "flipped"])
        place = draw.randrange(file.stat().st_size)
        if how == "flipped":
            flipped(file, place, draw)
        else:
            with open(file, "r+b") as stream:
                stream.truncate(0 if how == "emptied" else place)
        outcome = Child(name, commands.words(name), folder).wait()
        damaged.note(f"{name}, {file.relative_to(folder)} {how} at {place}", in_order(outcome))
        shutil.rmtree(folder)
    damaged.check()
