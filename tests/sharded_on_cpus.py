"""FSDP2 on CPUs: accelerate takes processes without accelerators for DistributedDataParallel's, whatever was configured.

Patched here, for tests alone. As a program it runs another so: `sharded_on_cpus.py SCRIPT ARGUMENTS...`.
"""

import runpy
import sys

import accelerate
from accelerate import DistributedType
from accelerate.state import AcceleratorState, PartialState


class _ShardsOnCpus(AcceleratorState):
    def __init__(self, *arguments, fsdp_plugin=None, **settings):
        super().__init__(*arguments, fsdp_plugin=fsdp_plugin, **settings)
        self.fsdp_plugin = fsdp_plugin
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def shard_on_cpus() -> None:
    """From here on this process's accelerators take part in FSDP."""
    accelerate.accelerator.AcceleratorState = _ShardsOnCpus


if __name__ == "__main__":
    shard_on_cpus()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
