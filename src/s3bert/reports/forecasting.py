"""Forecasting's Table 2: what was measured beside what the S3Attention paper prints, and forecasts drawn against the truth."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from s3bert.arguments import named_settings
from s3bert.files import table
from s3bert.plots import save, subplots


# Wang et al., Table 2: (MSE, MAE) at the four horizons. The journal prints "ETTh2" over the first; its lengths and the
# preprint say ETTm2. ILI is read with a context of 36 there, 60 in the preprint.
PUBLISHED: Mapping[str, Mapping[str, tuple[tuple[float, float], ...]]] = {
    "S3Attention, the paper's": {
        "ettm2": ((0.192, 0.283), (0.255, 0.324), (0.324, 0.364), (0.431, 0.433)),
        "electricity": ((0.218, 0.332), (0.259, 0.361), (0.267, 0.367), (0.293, 0.385)),
        "exchange": ((0.086, 0.204), (0.188, 0.292), (0.356, 0.433), (0.727, 0.669)),
        "traffic": ((0.592, 0.352), (0.583, 0.343), (0.598, 0.346), (0.641, 0.397)),
        "weather": ((0.182, 0.262), (0.228, 0.306), (0.295, 0.355), (0.383, 0.418)),
        "ili": ((2.431, 0.997), (2.287, 0.972), (2.418, 1.002), (2.425, 1.043)),
    },
    "FEDformer, the paper's": {
        "ettm2": ((0.203, 0.287), (0.269, 0.328), (0.325, 0.366), (0.421, 0.415)),
        "electricity": ((0.183, 0.297), (0.195, 0.308), (0.212, 0.313), (0.231, 0.343)),
        "exchange": ((0.139, 0.276), (0.256, 0.369), (0.426, 0.464), (1.090, 0.800)),
        "traffic": ((0.562, 0.349), (0.562, 0.346), (0.570, 0.323), (0.596, 0.368)),
        "weather": ((0.217, 0.296), (0.276, 0.336), (0.339, 0.380), (0.403, 0.428)),
        "ili": ((2.203, 0.963), (2.272, 0.976), (2.209, 0.981), (2.545, 1.061)),
    },
}


def published(dataset: str, horizons: tuple[int, ...], horizon: int) -> dict[str, tuple[float, float]]:
    """The papers' (MSE, MAE) by row name, for one of a dataset's own horizons; {} for others."""
    if horizon not in horizons:
        return {}
    place = horizons.index(horizon)
    return {name: rows[dataset][place] for name, rows in PUBLISHED.items() if dataset in rows}


def kind(model: str) -> str:
    """What a forecaster with settings is a variant of: its name, and whether each variable is a sequence of its own."""
    name, settings = named_settings(model)
    return f"{name}, channel-independent" if settings.get("channel_independent") else name


def chosen(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Of each kind of forecaster the variant with the least error on the validation split, at one horizon."""
    best: dict[str, str] = {}
    for model, result in results.items():
        before = best.setdefault(kind(model), model)
        if "settings" in result and result["settings"][0]["mean"] > results[before]["settings"][0]["mean"]:
            best[kind(model)] = model
    return best


def forecast_overview(runs: Mapping[str, Mapping[str, Any]], horizons: Mapping[str, tuple[int, ...]]) -> str:
    """Markdown tables of test MSE and MAE: a row a dataset, context and horizon, a column a kind of forecaster (its variant by
    `chosen`), the papers' beside; below each, in how many rows S3 is at or under the others.

    Args:
        runs: by name, the `all_results.json` of forecasting runs; those of one dataset and context share its rows. horizons: each
            dataset's own.

    Raises:
        ValueError: two runs have the same forecaster in the same row, with other results.
    """
    parts, merged = [], _by_row(runs)
    for place, metric in enumerate(("mse", "mae")):
        rows: dict[str, dict[str, float]] = {}
        for (dataset, context, horizon), results in merged.items():
            errors = {name: seed_errors(results[model], metric) for name, model in chosen(results).items()}
            row = rows[f"{dataset}, {context} to {horizon}"] = {
                name: mean(values) for name, values in errors.items() if values
            }
            papers = published(dataset, horizons[dataset], horizon)
            row |= {name: values[place] for name, values in papers.items()}
        parts += [_rows_of_errors(metric.upper(), rows), _counts(rows)]
    return "\n\n".join(parts)


def _by_row(runs: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """All runs' results by model, for each dataset, context and horizon."""
    merged: dict[tuple[str, int, int], dict[str, Any]] = {}
    origin: dict[tuple[str, int, int, str], str] = {}
    for run, content in runs.items():
        for horizon, results in content["horizons"].items():
            key = (content["dataset"], content["context_length"], int(horizon))
            row = merged.setdefault(key, {})
            for model, result in results.items():
                first = origin.setdefault((*key, model), run)
                if row.setdefault(model, result) != result:
                    raise ValueError(
                        f"{model} on {key[0]}, {key[1]} to {key[2]} is in the runs {first} and {run} with other errors: name "
                        "one of them."
                    )
    return merged


def _columns(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """All rows' columns, the papers' last."""
    return sorted({name: None for row in rows.values() for name in row}, key=lambda name: name in PUBLISHED)


def _rows_of_errors(corner: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    names = _columns(rows)
    lines = [[label, *(f"{row[name]:.3f}" if name in row else "" for name in names)] for label, row in rows.items()]
    return table([corner, *names], lines)


def _counts(rows: Mapping[str, Mapping[str, float]]) -> str:
    """A Markdown table: each kind of S3 against every other column, equal where equal in print."""
    names = _columns(rows)
    lines = []
    for name in (name for name in names if name.split(",")[0] == "s3"):
        line = [name]
        for other in names:
            both = [row for row in rows.values() if name in row and other in row]
            under = sum(round(row[name], 3) <= round(row[other], 3) for row in both)
            line.append("" if other == name else f"{under} of {len(both)}")
        lines.append(line)
    return table(["at or under", *names], lines)


def seed_errors(result: Mapping[str, Any], metric: str) -> list[float]:
    """A metric on the test split for each seed of a model's best setting, as `grid.grid_results` gives them, or of a forecast
    without training."""
    if "settings" not in result:
        return [result[metric]]
    return [trial["metrics"][f"test_{metric}"] for trial in result["settings"][0]["trials"] if trial["metrics"]]


def forecast_page(
    dataset: str, horizons: tuple[int, ...], results: Mapping[int, Mapping[str, Mapping[str, Any]]]
) -> str:
    """A dataset's results in Markdown: errors beside the papers', what the usual programs leave out, and what was tried.

    Args:
        horizons: the dataset's own. results: by horizon, then by model.
    """
    parts = [f"# {dataset}", "Test MSE / MAE, mean and standard deviation over seeds."]
    parts.append(forecast_table(dataset, horizons, results))
    if note := dropped_batch_note(results):
        parts.append(note)
    if tried := validation_table(results):
        parts += ["What was tried; settings and variants are chosen by it, never by the test split:", tried]
    return "\n\n".join(parts) + "\n"


def forecast_table(
    dataset: str, horizons: tuple[int, ...], results: Mapping[int, Mapping[str, Mapping[str, Any]]]
) -> str:
    """A Markdown table of MSE / MAE: a row a model, a column a horizon; mean and standard deviation over seeds.

    Args:
        horizons: the dataset's own. results: by horizon, then by model.
    """
    models = list(dict.fromkeys(model for found in results.values() for model in found))
    rows = [[model, *(_cell(results[horizon].get(model)) for horizon in results)] for model in models]
    for name in PUBLISHED:
        cells = [published(dataset, horizons, horizon).get(name) for horizon in results]
        if any(cells):
            rows.append([name, *("" if cell is None else f"{cell[0]:.3f} / {cell[1]:.3f}" for cell in cells)])
    return table(["", *map(str, results)], rows)


def dropped_batch_note(results: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> str:
    """What leaving out the last incomplete batch of test windows, as the usual programs do, changes most; "" without a trained
    model."""
    changes = [
        (trial["metrics"]["test_mse_without_rest"] / trial["metrics"]["test_mse"] - 1, model, horizon)
        for horizon, found in results.items()
        for model, result in found.items()
        for trial in (result["settings"][0]["trials"] if "settings" in result else ())
        if trial["metrics"] and "test_mse_without_rest" in trial["metrics"]
    ]
    if not changes:
        return ""
    change, model, horizon = max(changes, key=lambda entry: abs(entry[0]))
    return (
        "All test windows count. The usual programs leave out the last incomplete batch: that would change the MSE by "
        f"{100 * change:+.1f}% where it changes it most ({model}, {horizon} steps)."
    )


def validation_table(results: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> str:
    """A Markdown table of everything that was tried: mean validation MSE of each model's settings, by which they are chosen;
    the least of a kind and horizon is bold. "" where nothing was trained."""
    rows: dict[tuple[str, str], dict[int, float]] = {}
    for horizon, found in results.items():
        for model, result in found.items():
            for setting in result.get("settings", []):
                if setting["mean"] is not None:
                    rows.setdefault((model, setting["name"]), {})[horizon] = -setting["mean"]
    least: dict[tuple[str, int], float] = {}
    for (model, _), values in rows.items():
        for horizon, value in values.items():
            least[kind(model), horizon] = min(value, least.get((kind(model), horizon), value))
    lines = []
    for (model, setting), values in rows.items():
        cells = [f"{values[horizon]:.4f}" if horizon in values else "" for horizon in results]
        for place, horizon in enumerate(results):
            if values.get(horizon) == least.get((kind(model), horizon), 0):
                cells[place] = f"**{cells[place]}**"
        lines.append([model, setting, *cells])
    return table(["validation MSE", "setting", *map(str, results)], lines) if lines else ""


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return ""
    parts = []
    for metric in ("mse", "mae"):
        values = seed_errors(result, metric)
        if not values:
            return "failed"
        parts.append(f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""))
    return " / ".join(parts)


def plot_forecasts(file: Path, title: str, examples: Mapping[int, Mapping[str, np.ndarray]]) -> None:
    """Draws one variable: a panel a horizon with the context, the truth and each model's forecast.

    Args:
        examples: by horizon, then by name, (horizon,); among the names are "truth", and "past", the context (L,).
    """
    figure, panels = subplots(len(examples), 1, figsize=(10, 2.6 * len(examples)), squeeze=False)
    for axes, (horizon, lines) in zip(panels[:, 0], examples.items(), strict=True):
        axes.plot(range(-len(lines["past"]), 0), lines["past"], color="black", linewidth=1)
        for name, values in lines.items():
            if name == "past":
                continue
            style = {"color": "black", "linewidth": 1.5} if name == "truth" else {"linewidth": 1}
            axes.plot(range(len(values)), values, label=name, **style)
        axes.axvline(-0.5, color="grey", linewidth=0.5)
        axes.set(ylabel="standardised", title=f"{horizon} steps ahead")
        axes.grid(alpha=0.3)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize="small")
    panels[-1, 0].set(xlabel="steps after the last known value")
    figure.suptitle(title)
    save(figure, file, dpi=110)


def plot_columns(
    file: Path, names: list[str], dates: Any, values: np.ndarray, future_dates: Any, forecasts: np.ndarray
) -> None:
    """Draws a panel a variable: its last values and its forecast against the dates.

    Args:
        values: (T, C), NaN where missing. forecasts: (H, C).
    """
    figure, panels = subplots(len(names), 1, figsize=(10, 1 + 2 * len(names)), sharex=True, squeeze=False)
    for place, (axes, name) in enumerate(zip(panels[:, 0], names, strict=True)):
        axes.plot(dates, values[:, place], color="black", linewidth=1, label="observed")
        axes.plot(future_dates, forecasts[:, place], color="C0", linewidth=1.5, label="forecast")
        axes.set(ylabel=name)
        axes.grid(alpha=0.3)
    panels[0, 0].legend(fontsize="small")
    save(figure, file, dpi=130)
