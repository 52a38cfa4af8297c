"""Where the time of one step of an encoder goes: by part of its layers and by operator, forward and backward."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from s3bert.models import mixer_s3
from s3bert.training.memory import Step, synchronize


_MIXERS = ("attention", "attn", "fourier")  # the part of a layer whose own parts are told
# S3's fast forms, by the part they compute. They read its modules, and a hook on those would have the direct form called.
_FAST_FORMS = {
    "short_smoother": "smoother",
    "folded_smoother": "smoother",
    "skip_kv_attention": "self",
    "low_rank_attention": "self",
}
_PREFIX = "part: "
_BACKWARD = "autograd::engine::evaluate_function"
_REST = "(rest)"
_STEPS = 3
_OPERATORS = 15  # rows of the second table


def profile_step(model: nn.Module, step: Step, device: torch.device) -> str:
    """Markdown of two tables: milliseconds of a step by part and by operator.

    The parts are the children of the layers, summed over the layers, those of the token mixer, and the children of the
    model. The backward's operators are told by the forward's that they belong to. On an accelerator its kernels' time
    counts, else the CPU's. The profiler slows small operators down: trust shares more than sums.
    """
    step()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with _named_parts(model), profile(activities=activities) as profiler:
        for _ in range(_STEPS):
            step()
        synchronize(device)
    on_device = device.type != "cpu"

    def own_time(event) -> float:
        return (event.self_device_time_total if on_device else event.self_cpu_time_total) / _STEPS / 1000

    events = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CPU]
    events = [(event, *_place(event)) for event in sorted(events, key=lambda event: event.time_range.start)]
    # A backward node has the sequence number of the operator that made it: of those with the number, the last to start.
    makers = {event.sequence_nr: part for event, part, node in events if node is None}
    forward, backward, operators = Counter(), Counter(), defaultdict(Counter)
    for event, part, node in events:
        if node is None:
            forward[part] += own_time(event)
        else:
            backward[makers.get(node.sequence_nr, _REST)] += own_time(event)
        if event.name.startswith("aten::"):
            operators[event.name].update(calls=1 / _STEPS, time=own_time(event))
    return f"{_parts_table(forward, backward)}\n\n{_operators_table(operators)}\n"


@contextmanager
def _named_parts(model: nn.Module) -> Iterator[None]:
    """While it lasts, every part's forward is a range of its name in a profile."""
    handles = []
    forms = {form: getattr(mixer_s3, form) for form in _FAST_FORMS}
    for form, function in forms.items():
        setattr(mixer_s3, form, record_function(f"{_PREFIX}attention.{_FAST_FORMS[form]}")(function))
    for name, module in _parts(model):
        ranges = []

        def enter(*_, name=name, ranges=ranges):
            ranges.append(record_function(_PREFIX + name))
            ranges[-1].__enter__()

        def leave(*_, ranges=ranges):
            ranges.pop().__exit__(None, None, None)

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for form, function in forms.items():
            setattr(mixer_s3, form, function)
        for handle in handles:
            handle.remove()


def _parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules with the name of their part, the same in all layers."""
    layers_name, layers = max(
        ((name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)),
        key=lambda item: len(item[1]),
    )
    for name, module in model.named_children():
        if not f"{layers_name}.".startswith(f"{name}."):
            yield name, module
    for layer in layers:
        for name, module in layer.named_children():
            yield name, module
            if name in _MIXERS:
                fast = getattr(module, "implementation", None) == "auto"
                for child, part in module.named_children():
                    if not (fast and child in _FAST_FORMS.values()):
                        yield f"{name}.{child}", part


def _place(event) -> tuple[str, object | None]:
    """The part that an operator's forward runs in, and the backward node that it runs under, if any."""
    part = None
    while event is not None:
        if event.name.startswith(_BACKWARD):
            return _REST, event
        if part is None and event.name.startswith((_PREFIX, "Optimizer.")):
            part = event.name.removeprefix(_PREFIX).partition("#")[0]
        event = event.cpu_parent
    return part or _REST, None


def _parts_table(forward: Counter, backward: Counter) -> str:
    total = forward.total() + backward.total()
    parts = sorted(forward | backward, key=lambda part: part == _REST)
    rows = [(part, forward[part], backward[part]) for part in parts] + [("sum", forward.total(), backward.total())]
    lines = ["| part | forward, ms | backward, ms | share |", "| --- | --- | --- | --- |"]
    lines += [f"| {part} | {ahead:.2f} | {back:.2f} | {(ahead + back) / total:.1%} |" for part, ahead, back in rows]
    return "\n".join(lines)


def _operators_table(operators: dict[str, Counter]) -> str:
    total = sum(counts["time"] for counts in operators.values())
    longest = sorted(operators.items(), key=lambda item: -item[1]["time"])[:_OPERATORS]
    lines = ["| operator | calls | ms | share |", "| --- | --- | --- | --- |"]
    lines += [f"| {name} | {n['calls']:.0f} | {n['time']:.2f} | {n['time'] / total:.1%} |" for name, n in longest]
    return "\n".join(lines)
