"""The tables and the plot of a benchmark's `results.json`."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from s3bert.files import table
from s3bert.plots import save, subplots

from .arguments import ENGINES
from .results import Record, engine_of, name_of


_EXPONENT_FROM = 512  # tokens; under that the length-independent work hides how the time grows
_NONE = "-"


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    first, median, third = np.quantile(values, [0.25, 0.5, 0.75])
    return float(first), float(median), float(third)


def time_exponent(seconds_per_token: dict[int, float]) -> float | None:
    """The power of the length that time per token grows with: least squares in log-log over lengths from 512 on.

    Args:
        seconds_per_token: by length. Returns None for fewer than two such lengths.
    """
    points = [(length, seconds) for length, seconds in seconds_per_token.items() if length >= _EXPONENT_FROM]
    if len(points) < 2:
        return None
    lengths, seconds = np.log(np.array(points)).T
    return float(np.polyfit(lengths, seconds, 1)[0])


def seconds_per_token(record: Record) -> float:
    """Median over the rounds, padding counted as tokens; a step of generation is of one token of each sequence."""
    tokens = 1 if record["mode"] == "generation" else record["length"]
    return quartiles(record["seconds"])[1] / (record["batch_size"] * tokens)


def speed_report(results: Record) -> str:
    """Markdown: conditions, then for each mode tokens/s, ratios to the baseline, memory, and the paper's Table 4 layout."""
    return "\n\n".join(["# Speed and peak memory", *_sections(results, "##")]) + "\n"


def speed_sections(runs: Mapping[str, Record]) -> list[str]:
    """A section for each benchmark, by name."""
    return [part for name, results in runs.items() for part in (f"## {name}", *_sections(results, "###"))]


def speed_headline(runs: Mapping[str, Record]) -> tuple[str, str]:
    """The width, mode and longest length of the first benchmark, and what S3 or S3BERT, else every model, runs at, relative to the baseline."""
    results = next(iter(runs.values()))
    settings, threads = results["settings"], results["machine"]["num_threads"]
    timed = [record for record in results["speed"] if "relative" in record]
    length = max(record["length"] for record in timed)
    setting = (
        f"width {settings['hidden_size']}, {settings['num_hidden_layers']} layers, {threads} thread{'s' * (threads > 1)}, "
        f"{length:,} tokens"
    )
    longest = [record for record in timed if record["length"] == length]
    found = [
        f"{record['mode'].replace('_', ' ')} {_relative(record)}"
        for record in longest
        if name_of(record) in ("s3bert", "lra-s3")
    ]
    others = [f"{name_of(record)} {_relative(record)}" for record in longest if record["model"] != settings["baseline"]]
    whose = "S3's speed" if found else "Speed"
    return setting, f"{whose} relative to {settings['baseline']} (quartiles): {', '.join(found or others)}"


def _sections(results: Record, level: str) -> list[str]:
    sections = [_conditions(results)]
    for mode in dict.fromkeys(record["mode"] for record in results["speed"]):
        sections += _mode_sections(mode, results, level)
    notes = [f"- {model}: {note}." for model, note in results.get("notes", {}).items()]
    reasons = {}
    for record in results["speed"] + results["memory"]:
        if "empty" in record:
            lengths = reasons.setdefault((name_of(record), record["empty"]), [])
            lengths += [record["length"]] if record["length"] not in lengths else []
    notes += [
        f"- {model}, not measured at {', '.join(map(str, lengths))}: {reason}."
        for (model, reason), lengths in reasons.items()
    ]
    return sections + ([f"{level} Notes", "\n".join(notes)] if notes else [])


def _conditions(results: Record) -> str:
    settings, machine = results["settings"], results["machine"]
    batch = (
        f"{settings['batch_size']} sequences a batch"
        if settings["batch_size"]
        else f"{settings['tokens_per_batch']:,} tokens a batch (one sequence at least)"
    )
    padding = (
        f"{settings['padding']:.0%} of them padding, with a mask" if settings["padding"] else "no padding, no mask"
    )
    measured = {record["measured"] for record in results["memory"] if "measured" in record}
    generates = any(record["mode"] == "generation" for record in results["speed"])
    lines = [
        f"{machine.get('accelerator', machine['processor'])}, {machine['num_threads']} threads on the CPU; "
        f"torch {machine['torch']}, Transformers {machine['transformers']}, Python {machine['python']}, s3bert {machine['s3bert']}.",
        f"Hidden size {settings['hidden_size']}, {settings['num_hidden_layers']} layers, {settings['num_attention_heads']} heads, "
        f"feed-forward {settings['intermediate_size']}, vocabulary {settings['vocab_size']:,}, {'with' if generates else 'no'} head; S3BERT: r "
        f"{settings['num_segments']}, s1 {settings['num_row_samples']}, s2 {settings['num_column_samples']}, "
        f"smoother norm {settings['smoother_norm']}.",
        f"{batch[0].upper()}{batch[1:]}, {padding}; dropout {settings['dropout']:g}; weights and activations in {settings['dtype']}; "
        f"{'compiled' if settings['torch_compile'] else 'not compiled'}.",
        f"Each round times every model, in random order, at least {settings['rounds']} rounds; medians over the rounds, with "
        "quartiles. Padding counts as tokens.",
    ]
    engines = dict.fromkeys(map(engine_of, results["speed"]))
    if any((record["model"], record["mode"]) == ("s3bert", "inference") for record in results["speed"]):
        by_onnx = ", except in ONNX Runtime" if {"onnx", "int8"} & {*engines} else ""
        lines.append(f"In inference S3BERT's filters are folded (`fold_filters`){by_onnx}.")
    lines += [f"`{engine}`: {ENGINES[engine]}." for engine in engines if engine != "torch"]
    if generates:
        lines.append(
            "Generation: seconds of one more token after so many, greedily, as `generate` does it, reading the prompt not counted; "
            "memory is of the cache and of a step."
        )
    if "accelerator" not in machine:
        lines.append("Under glibc freed memory is kept for the next allocation while speed is measured.")
    if measured:
        lines.append(
            "Memory: the peak of one step above the built model, each in a fresh process after a first step, so "
            f"without kernels, their scratch memory and AdamW's state ({'; '.join(sorted(measured))})."
        )
    return "\n".join(f"- {line}" for line in lines)


def _mode_sections(mode: str, results: Record, level: str) -> list[str]:
    speed = {(name_of(r), r["length"]): r for r in results["speed"] if r["mode"] == mode and "seconds" in r}
    memory = {(name_of(r), r["length"]): r for r in results["memory"] if r["mode"] == mode and "peak_bytes" in r}
    models = list(dict.fromkeys(name_of(r) for r in results["speed"] if (name_of(r), r["length"]) in speed))
    lengths = sorted({r["length"] for r in results["speed"] if r["mode"] == mode})

    def part(title: str, columns: list[str], rows: dict[str, list[str]]) -> str:
        lines = [[model, *row] for model, row in rows.items()]
        return f"{level}# {title}\n\n{table(['model', *columns], lines)}"

    def cells(source: dict, model: str, text) -> list[str]:
        return [text(source[model, length]) if (model, length) in source else _NONE for length in lengths]

    def exponent(model: str) -> str:
        value = time_exponent({length: seconds_per_token(r) for (name, length), r in speed.items() if name == model})
        return _NONE if value is None else f"{round(value, 2) + 0.0:+.2f}"  # no -0.00

    first = min((length for length in lengths if length >= _EXPONENT_FROM), default=_EXPONENT_FROM)
    in_its_engine = " in the same engine" if any(engine_of(r) != "torch" for r in results["speed"]) else ""
    parts = [
        part(
            "Tokens per second, and half the distance of the quartiles",
            [*map(str, lengths), f"exponent of time per token, from {first}"],
            {model: [*cells(speed, model, _tokens_per_second), exponent(model)] for model in models},
        ),
        part(
            f"Speed relative to {results['settings']['baseline']}{in_its_engine}, and quartiles",
            [*map(str, lengths)],
            {model: cells(speed, model, _relative) for model in models},
        ),
    ]
    steps = {model: cells(speed, model, lambda r: f"{1 / quartiles(r['seconds'])[1]:.3g}") for model in models}
    columns = [f"steps/s {length}" for length in lengths]
    if memory:
        mebibytes = {model: cells(memory, model, lambda r: _mebibytes(r["peak_bytes"])) for model in models}
        parts.append(part("Peak memory, MiB", [*map(str, lengths)], mebibytes))
        if mode == "generation":
            kibibytes = {model: cells(memory, model, lambda r: f"{r['cache_bytes'] / 2**10:,.0f}") for model in models}
            parts.append(part("Cache, KiB", [*map(str, lengths)], kibibytes))
        mebibytes = {model: cells(memory, model, lambda r: f"{r['model_bytes'] / 2**20:,.0f}") for model in models}
        title = "Weights and buffers, MiB (for inference S3BERT's hold folded filters)"
        parts.append(part(title, [*map(str, lengths)], mebibytes))
        columns += [f"GB {length}" for length in lengths]
        steps = {m: row + cells(memory, m, lambda r: f"{r['peak_bytes'] / 1e9:.3g}") for m, row in steps.items()}
    if mode != "generation":
        parts.append(part("Steps per second and peak memory (the layout of the paper's Table 4)", columns, steps))
    return [f"{level} {mode.replace('_', ' ').capitalize()}", *parts]


def _tokens_per_second(record: Record) -> str:
    first, median, third = quartiles(record["seconds"])
    return f"{1 / seconds_per_token(record):,.0f} ±{(third - first) / 2 / median:.0%}"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f}" if size >= 2**20 else f"{size / 2**20:.2g}"


def _relative(record: Record) -> str:
    if not record["relative"]:
        return _NONE
    first, median, third = quartiles(record["relative"])
    return f"{median:.2f} ({first:.2f}-{third:.2f})"


def plot_speeds(file: Path, runs: Mapping[str, Record]) -> None:
    """Draws tokens/s and peak memory against length, a panel for each benchmark and mode that has them and a line for each model."""
    measures = (
        ("tokens/s", "speed", lambda r: 1 / seconds_per_token(r) if "seconds" in r else None),
        ("peak memory (MiB)", "memory", lambda r: r["peak_bytes"] / 2**20 if "peak_bytes" in r else None),
    )
    drawn = []
    for name, results in runs.items():
        for mode in dict.fromkeys(record["mode"] for record in results["speed"]):
            title = mode.replace("_", " ") + (f" ({name})" if len(runs) > 1 else "")
            for label, part, value in measures:
                points = [(r, value(r)) for r in results[part] if r["mode"] == mode and value(r) is not None]
                drawn += [(title, label, mode, points)] if points else []
    models = list(dict.fromkeys(name_of(record) for results in runs.values() for record in results["speed"]))
    rows = -(-len(drawn) // 2)
    figure, panels = subplots(rows, 2, figsize=(15, 4.2 * rows), squeeze=False)
    for axes in panels.flat[len(drawn) :]:
        axes.remove()
    handles = {}
    for (title, label, mode, points), axes in zip(drawn, panels.flat):
        for model in models:
            line = sorted((r["length"], y) for r, y in points if name_of(r) == model)
            axes.plot(*zip(*line), label=model, **_line_style(model, models)) if line else None
        lengths = sorted({r["length"] for r, _ in points})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xticks(lengths, map(str, lengths))
        xlabel = "tokens before the one that is generated" if mode == "generation" else "tokens of a sequence"
        axes.set(xlabel=xlabel, ylabel=label, title=title)
        axes.grid(alpha=0.3, which="both")
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels())))
    figure.legend(handles.values(), handles.keys(), loc="outside right upper")
    save(figure, file, dpi=110)


def _line_style(model: str, models: list[str]) -> dict:
    """A colour and a marker for each model, S3BERT's thick and in front; other forms and engines of a model in its colour, dashed."""
    bases = {name: _base(name, models) for name in models}
    base, others = bases[model], [name for name in models if bases[name] == name != "s3bert"]
    colours = ["black", "tab:blue", "tab:green", "tab:orange", "tab:purple", "tab:brown", "tab:cyan", "tab:olive"]
    i = 0 if base == "s3bert" else others.index(base)
    colour = "crimson" if base == "s3bert" else colours[i % len(colours)]
    if model != base:
        forms = list(dict.fromkeys(name.removeprefix(bases[name]) for name in models if bases[name] != name))
        dashes = [":", "--", "-.", (0, (5, 1, 1, 1, 1, 1))][forms.index(model.removeprefix(base)) % 4]
        return {"color": colour, "linewidth": 1.2, "linestyle": dashes}
    if model == "s3bert":
        return {"color": colour, "linewidth": 3, "marker": "o", "zorder": 3}
    style = {"linestyle": "-" if i < len(colours) else "--", "linewidth": 1.4, "markersize": 5}
    return {"color": colour, "marker": "sv^DPX*<"[i % 8]} | style


def _base(model: str, models: list[str]) -> str:
    """The model that another is a form of, or the same in another engine; itself if it is none."""
    base, _, form = model.rpartition("-")
    return base if base in models and (base == "s3bert" or form in ENGINES) else model
