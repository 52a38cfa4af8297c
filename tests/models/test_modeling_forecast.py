"""The S3 forecaster against loops over its equations; standardisation, missing values, other series in a batch, folders."""

import cmath
import math
import re
import statistics

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st
from mixers_reference import dense, s3
from reference import relative_error
from transformers import AutoModel

from s3bert import S3ForecastConfig, S3ForecastModel
from s3bert.models.dlinear import DLinearConfig, DLinearModel
from s3bert.models.modeling_forecast import fourier_extrapolation, standardise


SIZES = dict(context_length=13, prediction_length=9, num_input_channels=3, hidden_size=8, num_attention_heads=2)
SIZES |= dict(num_segments=4, num_row_samples=5, num_column_samples=2, num_harmonics=3)
INDEPENDENT = pytest.mark.parametrize("independent", [False, True], ids=["together", "independent"])


def model(**changes) -> S3ForecastModel:
    torch.manual_seed(0)
    return S3ForecastModel(S3ForecastConfig(**SIZES | changes)).eval()


def extrapolation_loops(series: list[float], harmonics: int, horizon: int) -> list[float]:
    """Algorithm 4 term by term: the lowest frequencies' cosines, with their conjugates, at every step."""
    length, result = len(series), []
    spectrum = [
        sum(value * cmath.exp(-2j * math.pi * k * t / length) for t, value in enumerate(series)) / length
        for k in range(harmonics + 1)
    ]
    for t in range(length + horizon):
        total = abs(spectrum[0]) * math.cos(cmath.phase(spectrum[0]))
        for k in range(1, harmonics + 1):
            times = 1 if 2 * k == length else 2
            total += times * abs(spectrum[k]) * math.cos(2 * math.pi * k * t / length + cmath.phase(spectrum[k]))
        result.append(total)
    return result


@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 40), horizon=st.integers(1, 90), seed=st.integers(0, 99), data=st.data())
def test_extrapolation_is_that_of_the_loops_and_continues_kept_harmonics_exactly(length, horizon, seed, data):
    harmonics = data.draw(st.integers(0, length // 2))
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(2, length, 3, generator=generator, dtype=torch.float64)
    rows = [[extrapolation_loops(row.tolist(), harmonics, horizon) for row in one.T] for one in states]
    expected = torch.tensor(rows, dtype=torch.float64).mT
    assert relative_error(fourier_extrapolation(states, harmonics, horizon), expected) < 1e-12
    assert relative_error(fourier_extrapolation(states.float(), harmonics, horizon), expected) < 1e-5

    steps = torch.arange(length + horizon, dtype=torch.float64)
    sizes = torch.randn(harmonics + 1, generator=generator, dtype=torch.float64)
    kept = sum(size * torch.cos(2 * math.pi * k * steps / length + 0.3 * k) for k, size in enumerate(sizes))
    continued = fourier_extrapolation(kept[None, :length, None].float(), harmonics, horizon)[0, :, 0]
    assert (continued - kept).abs().max() < 1e-5 * (1 + sizes.abs().sum())


def test_extrapolation_keeps_its_precision_under_autocast():
    states = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))
    exact = fourier_extrapolation(states, 8, 30)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fourier_extrapolation(states, 8, 30), exact)
        assert fourier_extrapolation(states.bfloat16(), 8, 30).dtype == torch.bfloat16


@pytest.mark.parametrize("offset", [1, 1e-5])
def test_standardisation_is_undone_and_takes_constants_and_missing_values(offset):
    torch.manual_seed(0)
    values = torch.randn(4, 11, 3, dtype=torch.float64) * 7 + 100
    observed = torch.rand(4, 11, 3) < 0.7
    values[1, :, 0] = 5.0  # constant
    observed[2, :, 1] = False  # never seen
    observed[3, :, 2] = torch.arange(11) == 4  # once
    standardised, loc, scale = standardise(values.masked_fill(~observed, math.nan), observed, offset)
    for window in range(4):
        for variable in range(3):
            seen = [values[window, t, variable].item() for t in range(11) if observed[window, t, variable]]
            mean = sum(seen) / max(1, len(seen))
            variance = statistics.variance(seen) if len(seen) > 1 else 0.0  # the unbiased one
            deviation = math.sqrt(variance + offset)
            assert loc[window, 0, variable].item() == pytest.approx(mean, abs=1e-12)
            assert scale[window, 0, variable].item() == pytest.approx(deviation)
    constant = values == 5.0
    constant[3, 4, 2] = True
    assert torch.equal(standardised == 0, ~observed | constant)
    undone = (standardised * scale + loc)[observed]
    assert relative_error(undone, values[observed]) < 1e-14


@INDEPENDENT
@pytest.mark.parametrize("missing", [False, True], ids=["whole", "missing"])
def test_the_whole_model_is_that_of_the_loops(independent, missing):
    offset = 0.1 if missing else 1
    net = model(channel_independent=independent, num_hidden_layers=2, variance_offset=offset).double()
    torch.manual_seed(1)
    values = torch.randn(2, 13, 3, dtype=torch.float64) * 3
    observed = torch.ones(2, 13, 3, dtype=torch.bool)
    if missing:
        observed[0, 2:5] = False
        observed[1, :, 1] = torch.rand(13) < 0.5
    weights, config = net.state_dict(), net.config
    output = net(past_values=values, past_observed_mask=observed)
    standardised, loc, scale = standardise(values, observed, offset)
    for window in range(2):
        groups = [[c] for c in range(3)] if independent else [[0, 1, 2]]
        for group in groups:
            inputs, seen = standardised[window][:, group], observed[window][:, group].any(1)
            positions = [t for t in range(13) if seen[t]]
            for block in range(2):
                kernel = weights[f"blocks.{block}.embedding.weight"]
                rows = [
                    sum(kernel[:, :, j] @ inputs[t + j - 1] for j in range(3) if 0 <= t + j - 1 < 13) for t in range(13)
                ]
                own = {
                    name.split("mixer.")[1]: w
                    for name, w in weights.items()
                    if name.startswith(f"blocks.{block}.mixer.")
                }
                mixed = s3(torch.stack([rows[t] for t in positions]), positions, own, 2, 13, 4, 5, 2)
                for place, t in enumerate(positions):
                    rows[t] = rows[t] + mixed[place]
                inputs = torch.stack(rows)
            future = torch.tensor(
                [extrapolation_loops(column.tolist(), config.num_harmonics, 9)[13:] for column in inputs.T],
                dtype=torch.float64,
            ).T
            expected = dense(future, weights, "projection") * scale[window][:, group] + loc[window][:, group]
            assert relative_error(output.prediction_outputs[window][:, group], expected) < 1e-10


@INDEPENDENT
def test_other_series_and_what_stands_at_missing_values_have_no_influence(independent):
    net = model(channel_independent=independent)
    torch.manual_seed(2)
    values, observed = torch.randn(3, 13, 3), torch.rand(3, 13, 3) < 0.8
    observed[:, 4] = False
    alone = net(past_values=values[:1], past_observed_mask=observed[:1]).prediction_outputs
    together = net(past_values=values, past_observed_mask=observed).prediction_outputs
    assert relative_error(together[:1], alone) < 1e-5
    for garbage in (1e6, math.nan, math.inf):
        filled = values.masked_fill(~observed, garbage)
        assert torch.equal(net(past_values=filled, past_observed_mask=observed).prediction_outputs, together)
    marked = net(past_values=values.masked_fill(~observed, math.nan)).prediction_outputs
    assert torch.equal(marked, together), "NaN says the same without a mask"


def test_variables_are_alike_where_they_are_independent_and_not_elsewhere():
    order = [2, 0, 1]
    values = torch.randn(2, 13, 3)
    for independent in (True, False):
        net = model(channel_independent=independent)
        plain, permuted = (net(past_values=part).prediction_outputs for part in (values, values[..., order]))
        assert torch.allclose(permuted, plain[..., order], atol=1e-5) == independent


def test_the_loss_is_that_of_observed_future_values_and_reaches_every_weight():
    net = model().train()
    past, future = torch.randn(4, 13, 3), torch.randn(4, 9, 3)
    past[0], future[0, :, 1] = math.nan, math.nan
    output = net(past_values=past, future_values=future)
    there = ~future.isnan()
    expected = (output.prediction_outputs - future)[there].square().mean().item()
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    output.loss.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in net.parameters())
    nothing = net(past_values=past, future_values=torch.full_like(future, math.nan)).loss
    assert nothing == 0


def test_a_folder_keeps_forecasts_and_carries_its_code(tmp_path):
    net, values = model(), torch.randn(2, 13, 3)
    net.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is S3ForecastModel
    assert torch.equal(loaded(values).prediction_outputs, net(values).prediction_outputs)
    code = {"configuration_forecast.py", "modeling_forecast.py"}
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"} | code


def test_half_precision_leaves_filters_and_statistics_in_float32(tmp_path):
    exact, values = model(), torch.randn(4, 13, 3)
    exact.save_pretrained(tmp_path)
    half = AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    for name, tensor in half.state_dict().items():
        kept = "smoother.filter" in name or "smoother.norm" in name
        assert tensor.dtype in (torch.float32 if kept else torch.bfloat16, torch.int64), name
    forecast = half(past_values=values).prediction_outputs
    assert relative_error(forecast, exact(past_values=values).prediction_outputs) < 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_harmonics": 7}, "num_harmonics = 7: a context of 13 steps has 0 to 6"),
        ({"num_segments": 3}, "hidden_size = 8 cannot be split into num_segments = 3 equal segments"),
        ({"prediction_length": 0}, "prediction_length = 0: must be at least 1"),
        ({"variance_offset": 0.0}, "variance_offset = 0.0: must be positive"),
        ({"variance_offset": float("inf")}, "variance_offset = inf: must be positive and finite"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob = 1.5: a dropout rate"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(changes, message):
    with pytest.raises(StrictDataclassError, match=message):
        S3ForecastConfig(**SIZES | changes)
    with pytest.raises(ValueError, match=r"S3ForecastConfig has no field 'num_harmonic'. Did you mean 'num_harmonics'"):
        S3ForecastConfig(num_harmonic=4)


def test_values_of_another_shape_are_refused():
    with pytest.raises(
        ValueError, match=r"past_values has shape \(2, 12, 3\); the model takes \(batch, 13 steps, 3 variables\)"
    ):
        model()(past_values=torch.randn(2, 12, 3))
    for wrong in ((2, 9, 1), (9, 3), (1, 9, 3)):  # all would broadcast
        shapes = rf"future_values has shape {re.escape(str(wrong))}; the forecast has \(2, 9, 3\)"
        with pytest.raises(ValueError, match=shapes):
            model()(past_values=torch.randn(2, 13, 3), future_values=torch.randn(wrong))
    values = {"past_values": torch.randn(2, 13, 3), "future_values": torch.randn(2, 9, 3)}
    for name, wrong in (("past_observed_mask", (2, 13, 1)), ("future_observed_mask", (2, 9, 1))):
        with pytest.raises(ValueError, match=rf"{name} has shape {re.escape(str(wrong))}: give it that of the values"):
            model()(**values, **{name: torch.ones(wrong)})


def test_dlinear_is_that_of_the_loops():
    torch.manual_seed(0)
    net = DLinearModel(DLinearConfig(context_length=7, prediction_length=4, kernel_size=3)).double()
    for weight in net.parameters():
        torch.nn.init.normal_(weight)
    values = torch.randn(2, 7, 2, dtype=torch.float64)
    forecast = net(past_values=values).prediction_outputs
    for window in range(2):
        for variable in range(2):
            x = values[window, :, variable]
            trend = torch.stack([(x[max(0, t - 1)] + x[t] + x[min(6, t + 1)]) / 3 for t in range(7)])
            expected = (
                net.trend.weight @ trend + net.trend.bias + net.remainder.weight @ (x - trend) + net.remainder.bias
            )
            assert relative_error(forecast[window, :, variable], expected) < 1e-12
    with pytest.raises(StrictDataclassError, match="kernel_size = 4: give an odd number"):
        DLinearConfig(kernel_size=4)
