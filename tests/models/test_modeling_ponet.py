"""PoNet against loops in float64, written from the paper's section 3; its segments, and the names of its checkpoints."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st

from s3bert import PoNetConfig, PoNetForMaskedLM, PoNetModel
from s3bert.models.mixer_ponet import PoolingMixer


def pooling_in_loops(
    mixer: PoolingMixer, tokens: torch.Tensor, real: list[bool], segments: list[int], apart: list[bool]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence (S, H) of float64 to mixed states (S, H) and global weights (h, S), a number at a time."""
    weights = {name: value.double() for name, value in mixer.named_parameters()}
    query, key, fusion, local, segment = (
        tokens @ weights[f"dense_{name}.weight"].T + weights[f"dense_{name}.bias"]
        if f"dense_{name}.weight" in weights
        else None  # an ablation
        for name in ("q", "k", "o", "local", "segment")
    )
    length, hidden = tokens.shape
    size = hidden // mixer.num_heads
    present = [i for i in range(length) if real[i]]
    mixed, attention = torch.zeros(length, hidden).double(), torch.zeros(mixer.num_heads, length).double()
    summary = [0] * hidden
    for head in range(mixer.num_heads if query is not None else 0):
        channels = range(head * size, (head + 1) * size)
        mean = [sum(query[i, c] for i in present) / len(present) for c in channels]
        scores = [sum(g * key[i, c] for g, c in zip(mean, channels, strict=True)) / math.sqrt(size) for i in present]
        total = torch.logsumexp(torch.stack(scores), 0)
        shares = {i: torch.exp(score - total) for i, score in zip(present, scores, strict=True)}
        for i, share in shares.items():
            attention[head, i] = share
        for c in channels:
            summary[c] = sum(share * key[i, c] for i, share in shares.items())
    for c in range(hidden):
        for i in present:
            segment_part = local_part = 0
            if segment is not None and not apart[i]:
                together = [segment[j, c] for j in present if segments[j] == segments[i] and not apart[j]]
                segment_part = torch.stack(together).max()
            if local is not None and not apart[i]:
                near = [local[j, c] for j in (i - 1, i, i + 1) if j in present and not apart[j]]
                local_part = torch.stack(near).max()
            mixed[i, c] = (summary[c] + segment_part) * fusion[i, c] + local_part
    return mixed, attention


@st.composite
def sequences(draw) -> tuple[list[bool], list[int], list[bool], int]:
    """Which tokens are real (one at least), their segments, which are apart, and a seed."""
    length = draw(st.integers(1, 13))

    def each(strategy: st.SearchStrategy) -> list:
        return draw(st.lists(strategy, min_size=length, max_size=length))

    real = each(st.booleans())
    real[draw(st.integers(0, length - 1))] = True
    return real, each(st.integers(0, length)), each(st.booleans()), draw(st.integers(0, 99))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(sequences(), st.sampled_from([(1, 1, 1), (1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 1, 0)]))
def test_pooling_equals_loops_in_float64_outputs_and_gradients(sequence, poolings):
    real, segments, apart, seed = sequence
    generator = torch.Generator().manual_seed(seed)
    mixer = PoolingMixer(6, 2, *map(bool, poolings))
    with torch.no_grad():
        for parameter in mixer.parameters():
            # Of a layer's size, 6 ** -0.5 about: saturated softmaxes have gradients that float32 does not resolve.
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    states = torch.randn(len(real), 6, generator=generator)
    direction = torch.randn(len(real), 6, generator=generator).double()
    results = []
    for exact in (True, False):
        leaf = (states.double() if exact else states).clone().requires_grad_()
        if exact:
            mixed, weights = pooling_in_loops(mixer, leaf, real, segments, apart)
        else:
            mask, numbers, away = torch.tensor([real]), torch.tensor([segments]), torch.tensor([apart])
            mixed, weights = (out[0] for out in mixer(leaf[None], mask, numbers, away & mask))
        inputs = [leaf, *mixer.parameters()]
        gradients = torch.autograd.grad((mixed.double() * direction).sum(), inputs, materialize_grads=True)
        results.append([mixed, weights, *gradients])
    for expected, actual in zip(*results, strict=True):
        scale = max(1.0, float(expected.detach().abs().max()))
        assert (actual - expected).abs().max() < 1e-5 * scale


CLS, SEP = 2, 3  # the tiny models' special tokens


def segments_of(model: PoNetModel, ids: list[int], mask: list[int] | None = None) -> list[int]:
    ids = torch.tensor([ids])
    mask = None if mask is None else torch.tensor([mask]).bool()
    return model._segments(ids[..., None], model._special(ids, mask), None)[0].tolist()


@pytest.mark.parametrize("family", ["ponet"])
def test_special_tokens_bound_segments_wherever_padding_stands(build_model):
    model = build_model()
    pair = [CLS, 10, 11, SEP, 12, 13, 14, SEP]

    def groups(numbers: list[int]) -> list[int]:
        return [numbers.index(number) for number in numbers]

    expected = [0, 1, 1, 3, 4, 4, 4, 7]
    assert groups(segments_of(model, pair)) == expected
    assert groups(segments_of(model, [*pair, 0, 0], [1] * 8 + [0] * 2)[:8]) == expected
    assert groups(segments_of(model, [SEP, 0, *pair], [0] * 2 + [1] * 8)[2:]) == expected
    assert groups(segments_of(model, [10, 11, 12])) == [0, 0, 0]
    assert max(segments_of(model, [CLS] * 16)) <= 16


@torch.no_grad()
@pytest.mark.parametrize("family", ["ponet"])
def test_tokens_of_other_segments_reach_a_token_through_the_global_vector_alone(build_model):
    """A far token that changes nothing in the global vector (no query, no key) changes its own segment only."""
    model = build_model(num_hidden_layers=1)
    mixer = model.encoder.layer[0].attention.self
    for layer in (mixer.dense_q, mixer.dense_k):
        layer.weight.zero_()
    ids = torch.tensor([[CLS, 10, 11, 12, SEP, 13, 14, 15, SEP]])
    other = ids.clone()
    other[0, 7] = 20
    before, after = (model(rows).last_hidden_state[0] for rows in (ids, other))
    assert torch.equal(before[:5], after[:5])
    assert torch.equal(before[8], after[8]), "[SEP] sees the global vector alone"
    assert not torch.equal(before[5], after[5]), "a segment's maximum reaches all of it"


@pytest.mark.parametrize("family", ["ponet"])
def test_the_authors_name_of_a_field_is_taken_and_saved_under_ours(tiny_config, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "ponet", "clsgsepg": false}')
    for config in (tiny_config(clsgsepg=False), PoNetConfig.from_pretrained(tmp_path)):
        assert config.exclude_special_from_pooling is config.clsgsepg is False
        assert "clsgsepg" not in config.to_dict()
    assert tiny_config().exclude_special_from_pooling


@torch.no_grad()
@pytest.mark.parametrize("family", ["ponet"])
def test_segments_given_or_of_fixed_width_replace_those_of_special_tokens(build_model):
    ids = torch.tensor([[CLS, 10, 11, 12, SEP, 13, 14, 15, SEP]])
    model, fixed = build_model(), build_model(segment_rule="fixed:4")
    assert fixed._segments(ids[..., None], None, None).tolist() == [[0, 0, 0, 0, 0, 1, 1, 1, 1]]  # 16 // 4 + 1 wide
    default = model(ids).last_hidden_state
    given_ids = torch.tensor([[0, 1, 1, 1, 2, 3, 3, 3, 4]])
    assert torch.equal(model(ids, segment_ids=given_ids).last_hidden_state, default)
    assert not torch.equal(model(ids, segment_ids=given_ids.clamp(max=1)).last_hidden_state, default)
    with pytest.raises(ValueError, match=r"segment_ids holds 10: .*up to the length 9"):
        model(ids, segment_ids=given_ids + 6)
    with pytest.raises(ValueError, match=r"segment_ids has shape \(1, 8\) and the input \(1, 9\)"):
        model(ids, segment_ids=given_ids[:, 1:])
    with pytest.raises(StrictDataclassError, match="segment_rule = 'fixed:0': give 'special', or 'fixed:m'"):
        PoNetConfig(segment_rule="fixed:0")
    with pytest.raises(StrictDataclassError, match="use_global_aggregation and use_segment_pooling are both False"):
        PoNetConfig(use_global_aggregation=False, use_segment_pooling=False)


def test_the_state_dict_names_are_those_of_the_authors_checkpoint():
    """Their tensors load as they are: the model's prefix, BERT's names, and five linear layers with theirs."""
    config = PoNetConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12)
    names = set(PoNetForMaskedLM(config).state_dict())
    mixers = {name.rsplit(".", 1)[0] for name in names if ".attention.self." in name}
    prefix = "ponet.encoder.layer.0.attention.self."
    assert mixers == {prefix + f"dense_{name}" for name in ("q", "k", "o", "local", "segment")}
    bert = {name for name in names if ".attention.self." not in name}
    assert {
        "ponet.embeddings.word_embeddings.weight",
        "ponet.encoder.layer.0.attention.output.dense.weight",
        "ponet.encoder.layer.0.attention.output.LayerNorm.bias",
        "ponet.encoder.layer.0.intermediate.dense.weight",
        "ponet.encoder.layer.0.output.dense.weight",
        "cls.predictions.transform.dense.weight",
        "cls.predictions.decoder.weight",
    } <= bert


def test_base_size_has_the_parameters_of_the_published_one():
    with torch.device("meta"):
        model = PoNetForMaskedLM(PoNetConfig())
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == 123.7
