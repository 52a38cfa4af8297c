"""This process's place among those of a run."""

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env


def process_state() -> PartialState:
    """This process's place among those of the run; call it rather than `PartialState`, which takes processes without an
    accelerator for separate runs unless told that they are meant to be on CPUs."""
    on_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return PartialState(cpu=on_cpu)
