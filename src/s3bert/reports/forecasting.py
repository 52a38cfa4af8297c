"""Forecasting's Table 2: what was measured beside what the S3Attention paper prints, and forecasts drawn against the truth."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from s3bert.arguments import named_settings
from s3bert.files import mean_and_deviation, table
from s3bert.plots import save, subplots

from .published import FORECASTS, published_errors


_METRICS = ("mse", "mae")


def model_family(model: str) -> str:
    """What a forecaster with settings is a variant of: its name, and whether each variable is a sequence of its own."""
    name, settings = named_settings(model)
    return f"{name}, channel-independent" if settings.get("channel_independent") else name


def best_variants(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By model family the variant with the least error on the validation split, at one horizon."""
    best: dict[str, str] = {}
    for model, result in results.items():
        before = best.setdefault(model_family(model), model)
        if "settings" in result and result["settings"][0]["mean"] > results[before]["settings"][0]["mean"]:
            best[model_family(model)] = model
    return best


def forecast_sections(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """All runs' best variants beside the papers, then a section for each run, by name."""
    sections = [
        "## All series",
        "Errors on the test split, means over seeds, of the variant with the least error on validation, horizon by horizon. The papers' "
        "numbers are those of the same context: of ILI with 60 weeks the preprint's.",
        forecast_overview(runs),
    ]
    for name, run in runs.items():
        results = {int(horizon): found for horizon, found in run["horizons"].items()}
        sections.append(f"## {name}")
        sections += _run_parts(run["dataset"], run["context_length"], results)
    return sections


def forecast_headline(runs: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The series, and in how many rows each form of S3 is at or under the paper's MSE."""
    series = ", ".join(dict.fromkeys(f"{run['dataset']} ({run['context_length']})" for run in runs.values()))
    rows = _errors(runs, "mse")
    papers = next(iter(FORECASTS))
    counts = [f"{name}: {_at_or_under(rows, name, papers)}" for name in _columns(rows) if _is_s3(name)]
    return f"{series}, test MSE", f"at or under the paper's S3: {'; '.join(counts)}"


def forecast_overview(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown tables of test MSE and MAE: a row a dataset, context and horizon, a column a model family (its variant by
    `best_variants`), the papers' beside; below each, in how many rows S3 is at or under the others.

    Args:
        runs: by name, the `all_results.json` of forecasting runs; those of one dataset and context share its rows.

    Raises:
        ValueError: two runs have the same forecaster in the same row, with other results.
    """
    parts = []
    for metric in _METRICS:
        rows = _errors(runs, metric)
        parts += [_rows_of_errors(metric.upper(), rows), _counts(rows)]
    return "\n\n".join(parts)


def _errors(runs: Mapping[str, Mapping[str, Any]], metric: str) -> dict[str, dict[str, float]]:
    """A metric by row ("ili, 60 to 24") and model family, the papers' in the rows of their own context and horizon."""
    rows: dict[str, dict[str, float]] = {}
    for (dataset, context, horizon), results in _by_row(runs).items():
        errors = {name: seed_errors(results[model], metric) for name, model in best_variants(results).items()}
        papers = published_errors(dataset, context, horizon)
        rows[f"{dataset}, {context} to {horizon}"] = {
            name: mean(values) for name, values in errors.items() if values
        } | {name: values[_METRICS.index(metric)] for name, values in papers.items()}
    return rows


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


def _is_s3(family: str) -> bool:
    return family.partition(",")[0] == "s3"


def _columns(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """All rows' columns, the papers' last."""
    return sorted({name: None for row in rows.values() for name in row}, key=lambda name: name in FORECASTS)


def _rows_of_errors(corner: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    names = _columns(rows)
    lines = [[label, *(f"{row[name]:.3f}" if name in row else "" for name in names)] for label, row in rows.items()]
    return table([corner, *names], lines)


def _counts(rows: Mapping[str, Mapping[str, float]]) -> str:
    """A Markdown table: each form of S3 against every other column."""
    names = _columns(rows)
    lines = [
        [name, *("" if other == name else _at_or_under(rows, name, other) for other in names)]
        for name in names
        if _is_s3(name)
    ]
    return table(["at or under", *names], lines)


def _at_or_under(rows: Mapping[str, Mapping[str, float]], name: str, other: str) -> str:
    """In how many of the rows that have both one error is not above the other, equal where equal in print."""
    both = [row for row in rows.values() if name in row and other in row]
    return f"{sum(round(row[name], 3) <= round(row[other], 3) for row in both)} of {len(both)}"


def seed_errors(result: Mapping[str, Any], metric: str) -> list[float]:
    """A metric on the test split for each seed of a model's best setting, as `grid.grid_results` gives them, or of a forecast
    without training."""
    if "settings" not in result:
        return [result[metric]]
    return [trial["metrics"][f"test_{metric}"] for trial in result["settings"][0]["trials"] if trial["metrics"]]


def forecast_page(dataset: str, context_length: int, results: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> str:
    """A run's results in Markdown: errors beside the papers', what the usual programs leave out, and what was tried.

    Args:
        results: by horizon, then by model.
    """
    return "\n\n".join([f"# {dataset}", *_run_parts(dataset, context_length, results)]) + "\n"


def _run_parts(dataset: str, context_length: int, results: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    parts = [f"{dataset}, {context_length} steps of context: test MSE / MAE, mean and standard deviation over seeds."]
    parts.append(forecast_table(dataset, context_length, results))
    if note := dropped_batch_note(results):
        parts.append(note)
    if tried := validation_table(results):
        parts += ["What was tried. Settings and variants are chosen by it, never by the test split:", tried]
    return parts


def forecast_table(dataset: str, context_length: int, results: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> str:
    """A Markdown table of MSE / MAE: a row a model, a column a horizon; mean and standard deviation over seeds. The papers' rows are
    those of the same context.

    Args:
        results: by horizon, then by model.
    """
    models = list(dict.fromkeys(model for found in results.values() for model in found))
    rows = [[model, *(_spread(results[horizon].get(model)) for horizon in results)] for model in models]
    papers = [published_errors(dataset, context_length, horizon) for horizon in results]
    for name in FORECASTS:
        errors = [found.get(name) for found in papers]
        if any(errors):
            rows.append([name, *("" if pair is None else f"{pair[0]:.3f} / {pair[1]:.3f}" for pair in errors)])
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
    the least of a model family and horizon is bold. "" where nothing was trained."""
    rows: dict[tuple[str, str], dict[int, float]] = {}
    for horizon, found in results.items():
        for model, result in found.items():
            for setting in result.get("settings", []):
                if setting["mean"] is not None:
                    rows.setdefault((model, setting["name"]), {})[horizon] = -setting["mean"]
    least: dict[tuple[str, int], float] = {}
    for (model, _), values in rows.items():
        for horizon, value in values.items():
            least[model_family(model), horizon] = min(value, least.get((model_family(model), horizon), value))
    lines = []
    for (model, setting), values in rows.items():
        cells = [f"{values[horizon]:.4f}" if horizon in values else "" for horizon in results]
        for place, horizon in enumerate(results):
            if values.get(horizon) == least.get((model_family(model), horizon), 0):
                cells[place] = f"**{cells[place]}**"
        lines.append([model, setting, *cells])
    return table(["validation MSE", "setting", *map(str, results)], lines) if lines else ""


def _spread(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return ""
    parts = []
    for metric in _METRICS:
        values = seed_errors(result, metric)
        if not values:
            return "failed"
        parts.append(mean_and_deviation(values, ".3f"))
    return " / ".join(parts)


def plot_errors(file: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws test MSE against the horizon: a panel a dataset and context, a line a model family, the papers' dashed."""
    series: dict[str, dict[str, list[tuple[int, float]]]] = {}
    rows = _errors(runs, "mse")
    names = _columns(rows)
    for row, errors in rows.items():
        title, _, horizon = row.rpartition(" to ")
        for name, value in errors.items():
            series.setdefault(title, {}).setdefault(name, []).append((int(horizon), value))
    figure, panels = subplots(1, len(series), figsize=(3.2 * len(series) + 1, 4.4), squeeze=False)
    handles = {}
    for axes, (title, lines) in zip(panels[0], series.items(), strict=True):
        for name, points in lines.items():
            style = {"linestyle": "--", "color": "black"} if name in FORECASTS else {"color": f"C{names.index(name)}"}
            marker = "x" if name == names[-1] else "o"
            (handles[name],) = axes.plot(*zip(*sorted(points)), marker=marker, markersize=4, linewidth=1.2, **style)
        axes.set(xlabel="steps ahead", title=f"{title} of context")
        axes.grid(alpha=0.3)
    panels[0][0].set(ylabel="test MSE (standardised)")
    figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=4, fontsize="small")
    save(figure, file, dpi=110)


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
        axes.set_ylabel(name, parse_math=False)  # "$" is a currency
        axes.grid(alpha=0.3)
    panels[0, 0].legend(fontsize="small")
    save(figure, file, dpi=130)
