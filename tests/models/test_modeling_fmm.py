"""FMMformer's language model: against float64 loops, step by step against all at once, and as Transformers' `generate` drives it."""

import copy
import math
import re

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from mixers_reference import TWINS
from reference import dense, layer_norm, relative_error, softmax
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache

from s3bert import FmmCache, FmmConfig, FmmForCausalLM, FmmModel


BAND, VOCABULARY = 5, 37
KINDS = {
    "softmax": (None, []),
    "linear": (0, ["elu"]),
    "fast weights": (0, ["delta_elu"]),
    "fast weights and linear": (0, ["delta_elu", "elu"]),
    "band": (BAND, []),
    "FMMformer": (BAND, ["elu"]),
    "FMMformer of two kernels": (BAND, ["elu", "elu_flip"]),
    "fast weights, linear and band": (BAND, ["delta_elu", "elu"]),
}
STATEFUL = [kind for kind in KINDS if kind != "softmax"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str = "fast weights, linear and band", **overrides) -> FmmForCausalLM:
    """Tiny, in evaluation, with weights far from their initial values."""
    bandwidth, kernels = KINDS[kind]
    fields = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "bandwidth": bandwidth,
        "kernels": kernels,
    }
    model = FmmForCausalLM(FmmConfig(**fields | overrides)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if name.endswith("norm.weight") else 0.3 * noise)
    return model


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def logits_in_loops(model: FmmForCausalLM, tokens: list[int]) -> torch.Tensor:
    """(S, V) in float64, a layer after the other."""
    config, weights = model.config, {name: value.double() for name, value in model.state_dict().items()}
    hidden, places = config.hidden_size, range(len(tokens))
    table = weights["fmm.word_embeddings.weight"]
    x = torch.stack([table[token] * math.sqrt(hidden) for token in tokens])
    angles = [[place / 10000 ** (2 * pair / hidden) for pair in range(hidden // 2)] for place in places]
    x = x + torch.tensor([[*map(math.sin, row), *map(math.cos, row)] for row in angles], dtype=torch.float64)
    for layer in range(config.num_hidden_layers):
        prefix = f"fmm.layers.{layer}."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        attention = {f"{name}.bias": torch.zeros(hidden).double() for name in ("query", "key", "value", "output")}
        attention |= {name[len("attention.") :]: own[name] for name in own if name.startswith("attention.")}
        settings = {"bandwidth": config.bandwidth, "kernels": config.kernels, "blend": config.blend, "causal": True}
        twin = TWINS["softmax" if config.bandwidth is None else "fmm"]
        x = layer_norm(
            x + twin(x, list(places), attention, 2, **settings), own, "attention_norm", config.layer_norm_eps
        )
        inner = dense(dense(x, own, "intermediate").clamp(min=0), own, "output")
        x = layer_norm(x + inner, own, "output_norm", config.layer_norm_eps)
    return x @ table.T


@each_kind
@pytest.mark.parametrize("blend", ["sigmoid", "per_channel"])
def test_logits_are_those_of_loops_over_the_equations(kind, blend):
    model, tokens = build(kind, blend=blend), ids(1, 13)
    expected = logits_in_loops(model, tokens[0].tolist())
    assert relative_error(model(tokens).logits[0], expected) < 1e-5
    assert relative_error(model.double()(tokens).logits[0], expected) < 1e-6  # angles are of float32


def streamed(model: FmmForCausalLM, tokens: torch.Tensor, sizes: list[int], **inputs) -> torch.Tensor:
    """Logits of tokens that are read so many at a time."""
    cache, parts, start = None, [], 0
    for size in sizes:
        output = model(tokens[:, start : start + size], past_key_values=cache, use_cache=True, **inputs)
        cache, start = output.past_key_values, start + size
        parts.append(output.logits)
    assert start == tokens.shape[1]
    return torch.cat(parts, 1)


@torch.no_grad()
@each_kind
@pytest.mark.parametrize("prefill", [0, 1, BAND - 1, BAND, 100])
def test_step_by_step_is_all_at_once(kind, prefill):
    model, tokens = build(kind), ids(2, 108)
    sizes = [prefill] * bool(prefill) + [1] * (108 - prefill)
    assert relative_error(streamed(model, tokens, sizes), model(tokens, use_cache=False).logits) < 1e-5


@torch.no_grad()
@each_kind
def test_a_prompt_in_pieces_of_any_size_is_all_at_once(kind):
    model, tokens = build(kind), ids(2, 108)
    assert relative_error(streamed(model, tokens, [3, 1, 66, 2, 36]), model(tokens, use_cache=False).logits) < 1e-5


@torch.no_grad()
@each_kind
@pytest.mark.parametrize("learned", [False, True])
def test_a_batch_with_padding_on_the_left_gives_what_each_sequence_gives_alone(kind, learned):
    own = {"position_embeddings": "learned", "max_position_embeddings": 21} if learned else {}
    model, tokens, lengths = build(kind, **own), ids(3, 21), (21, 14, 3)
    mask = torch.arange(21) >= 21 - torch.tensor(lengths)[:, None]
    prompt, whole = 17, model(tokens, mask).logits
    output = model(tokens[:, :prompt], mask[:, :prompt])
    parts = [output.logits]
    for place in range(prompt, 21):
        parts.append(
            model(tokens[:, place : place + 1], mask[:, : place + 1], past_key_values=output.past_key_values).logits
        )
    for row, length in enumerate(lengths):
        alone = model(tokens[row : row + 1, 21 - length :]).logits[0]
        for logits in (whole, torch.cat(parts, 1)):
            assert relative_error(logits[row, 21 - length :], alone) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kind", STATEFUL)
def test_a_state_remembers_its_padding_where_no_mask_is_given_afterwards(kind):
    model, tokens = build(kind), ids(2, 12)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, :6] = 0
    cache = model(tokens[:, :8], mask).past_key_values
    logits = model(tokens[:, 8:], past_key_values=cache).logits
    for row, first in enumerate((0, 6)):
        assert relative_error(logits[row], model(tokens[row : row + 1, first:]).logits[0, -4:]) < 1e-5


@torch.no_grad()
@each_kind
def test_what_comes_later_and_what_lies_under_the_mask_has_no_influence(kind):
    model, embeddings = build(kind), torch.randn(1, 80, 16)
    mask = torch.rand(1, 80) < 0.8
    later, under = embeddings.clone(), embeddings.clone()
    later[:, 70:], under[~mask] = 9.0, torch.nan
    before, after = (model(inputs_embeds=states, attention_mask=mask).logits for states in (embeddings, later))
    assert torch.equal(before[:, :70], after[:, :70])
    assert torch.equal(before[mask], model(inputs_embeds=under, attention_mask=mask).logits[mask])


def size_in_bytes(cache: FmmCache) -> int:
    states = [layer.state for layer in cache.layers]
    tensors = [
        tensor for state in states for tensor in (state.tokens, state.keys, state.values, state.real, *state.sums)
    ]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@torch.no_grad()
def test_the_state_of_ten_thousand_tokens_is_as_large_as_that_of_one_and_still_right():
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    model, tokens = build(**sizes), ids(1, 10_000)
    cache, expected, held = FmmCache(model.config), model(tokens, use_cache=False, logits_to_keep=1).logits, set()
    for piece in tokens.split([1] * 1000 + [9] * 999 + [4] + [1] * 5, 1):
        last = model(piece, past_key_values=cache).logits
        held.add(size_in_bytes(cache))
    assert cache.get_seq_length() == 10_000
    # float32: a window of 4 keys and values of 4 channels, 4 flags and a count; 4 x 4 of fast weights, 4 x 5 of a kernel
    assert held == {4 * (2 * 4 * 4 + 4 * 4 + 4 * 5) + 4 + 8}
    assert relative_error(last, expected) < 1e-5


@each_kind
@pytest.mark.parametrize(
    "how", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=["greedy", "beams", "sampled"]
)
def test_generation_with_a_cache_is_that_without_one(kind, how):
    model, prompts = build(kind), ids(3, 9)
    mask = torch.ones_like(prompts)
    mask[0, :4] = 0
    how = how | {"attention_mask": mask, "max_new_tokens": 12, "pad_token_id": 0, "no_repeat_ngram_size": 2}
    texts = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        texts.append(model.generate(prompts, use_cache=use_cache, **how))
    assert texts[0].shape == (3, 21)
    assert torch.equal(*texts)
    assert len(texts[0][:, 9:].unique()) > 3


@each_kind
def test_generation_goes_on_from_the_cache_it_gave(kind):
    model, prompt = build(kind), ids(1, 9)
    whole = model.generate(prompt, max_new_tokens=14)
    first = model.generate(prompt, max_new_tokens=6, return_dict_in_generate=True)
    cache = first.past_key_values
    assert isinstance(cache, DynamicCache if kind == "softmax" else FmmCache)
    assert torch.equal(model.generate(first.sequences, past_key_values=cache, max_new_tokens=8), whole)


@torch.no_grad()
def test_rows_of_a_cache_are_repeated_selected_and_forgotten():
    model, tokens = build(), ids(2, 9)
    cache = model(tokens[:, :6]).past_key_values
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0]))
    logits = model(tokens[:, 6:].flip(0), past_key_values=cache).logits
    assert relative_error(logits.flip(0), model(tokens).logits[:, 6:]) < 1e-5
    cache.reset()
    assert torch.equal(model(tokens, past_key_values=cache).logits, model(tokens).logits)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "cache", "words"),
    [
        ("band", lambda: FmmCache(build("linear").config), "an FmmCache of another model; this one has"),
        ("band", lambda: FmmCache(build("band", num_hidden_layers=3).config), "'num_hidden_layers': 2"),
        ("band", DynamicCache, "a DynamicCache of another model; this one has .*'bandwidth': 5.*give FmmCache"),
        ("band", lambda: ((torch.zeros(1), torch.zeros(1)),), "a tuple of another model"),
        ("softmax", lambda: FmmCache(build("linear").config), "an FmmCache of another model.*give DynamicCache"),
        ("softmax", lambda: DynamicCache(config=build("softmax", num_hidden_layers=1).config), "of another model"),
        ("softmax", lambda: build("softmax", num_attention_heads=4)(ids(1, 3)).past_key_values, "of another model"),
        ("softmax", lambda: build("softmax")(ids(2, 3)).past_key_values, "holds 2 sequences and the input 1"),
        ("band", lambda: build("band")(ids(2, 3)).past_key_values, "holds 2 sequences and the input 1"),
    ],
)
def test_a_cache_of_another_model_or_batch_is_named(kind, cache, words):
    with pytest.raises(ValueError, match=words.replace("an FmmCache", "a FmmCache")):
        build(kind)(ids(1, 1), past_key_values=cache())


def test_softmax_attention_has_no_state_of_constant_size():
    with pytest.raises(ValueError, match=r"bandwidth = None is softmax attention.*DynamicCache"):
        FmmCache(build("softmax").config)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "The input is empty: 1 sequences of 0 tokens"),
        (
            {"input_ids": torch.tensor([[1, VOCABULARY]])},
            r"input_ids holds 37, outside the model's 0\.\.36: use the tokenizer",
        ),
        ({"input_ids": ids(1, 17)}, "A sequence has 17 tokens and learned positions end at 16.*sinusoidal"),
        ({"input_ids": ids(1, 4), "attention_mask": torch.ones(1, 3)}, r"attention_mask has shape \(1, 3\)"),
        (
            {"input_ids": ids(1, 4), "position_ids": torch.tensor([[0, 1, 2, 16]])},
            "A sequence has 17 tokens and learned",
        ),
        ({"input_ids": ids(1, 4), "labels": torch.full((1, 4), 37)}, r"labels hold 37, outside 0\.\.36"),
        ({"input_ids": ids(4)}, r"\(B, S\)"),
        ({}, "either input_ids or inputs_embeds"),
        (
            {"input_ids": ids(1, 4), "output_attentions": True},
            "output_attentions = True: linear attention and fast weights",
        ),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_an_input_that_the_model_cannot_take_is_named(inputs, words):
    model = build(position_embeddings="learned", max_position_embeddings=16)
    assert model(ids(1, 16)).logits.isfinite().all()
    with pytest.raises(ValueError, match=words):
        model(**inputs)


def test_generation_from_nothing_or_beyond_learned_positions_is_an_error():
    model = build(position_embeddings="learned", max_position_embeddings=16)
    with pytest.raises(ValueError, match="A sequence has 17 tokens and learned positions end at 16"):
        model.generate(ids(1, 9), max_new_tokens=9)
    with pytest.raises(ValueError, match="The input is empty"):
        model.generate(torch.zeros(1, 0, dtype=torch.long), max_new_tokens=2)
    with pytest.raises(ValueError, match="bos_token_id"):
        model.generate(max_new_tokens=2)


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_loss_is_the_mean_cross_entropy_of_the_next_tokens_that_are_labelled(adaptive):
    model, tokens = build(adaptive_cutoffs=[7, 20] if adaptive else []), ids(2, 11)
    labels = tokens.masked_fill(torch.rand(2, 11) < 0.3, -100)
    output = model(tokens, labels=labels)
    shares = [softmax(row).log() for row in output.logits.detach().double().flatten(0, 1)]
    places = [(row, place) for row in range(2) for place in range(10) if labels[row, place + 1] != -100]
    losses = [-shares[11 * row + place][labels[row, place + 1]] for row, place in places]
    assert relative_error(output.loss, sum(losses) / len(losses)) < 1e-6
    assert relative_error(model(tokens, labels=labels, num_items_in_batch=5).loss, sum(losses) / 5) < 1e-6
    assert relative_error(model(tokens, labels=labels, logits_to_keep=2).loss, output.loss) < 1e-6
    assert relative_error(model(tokens, logits_to_keep=2).logits, output.logits[:, -2:]) < 1e-6
    assert model(tokens, labels=torch.full_like(tokens, -100)).loss == 0


def test_an_adaptive_softmax_gives_probabilities_to_generation_and_its_loss_alone_to_training():
    model, tokens = build(adaptive_cutoffs=[7, 20], adaptive_div_value=2.0), ids(2, 11)
    assert torch.allclose(model(tokens).logits.exp().sum(-1), torch.ones(2, 11))
    assert model.generate(tokens, max_new_tokens=4, num_beams=2).shape == (2, 15)
    output = model.train()(tokens, labels=tokens)
    output.loss.backward()
    assert output.logits is None
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    with pytest.raises(ValueError, match="An adaptive softmax keeps its vocabulary"):
        model.resize_token_embeddings(40)
    assert [tuple(tail[0].weight.shape) for tail in model.lm_head.tail] == [(8, 16), (4, 16)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("adaptive", [False, True])
def test_half_precision_trains_and_generates(adaptive, dtype):
    model, tokens = build(adaptive_cutoffs=[7, 20] if adaptive else []), ids(2, 70)
    with torch.autocast("cpu", dtype):
        loss = model.train()(tokens, labels=tokens).loss
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    half = model.eval().to(dtype)
    output = half(tokens)
    assert output.logits.isfinite().all()
    state = output.past_key_values.layers[0].state
    assert {tensor.dtype for tensor in (state.keys, state.values, *state.sums)} == {torch.float32}
    assert half.generate(tokens, max_new_tokens=3).shape == (2, 73)


def test_checkpointed_layers_give_the_same_gradients():
    tokens, gradients = ids(2, 20), []
    for checkpointed in (False, True):
        model = build(hidden_dropout_prob=0.0).train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        model(tokens, labels=tokens).loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert relative_error(*gradients) < 1e-6
    assert (gradients[0] != 0).any()
    with pytest.raises(ValueError, match="would take in each token twice"):
        model(tokens, use_cache=True)


@torch.no_grad()
def test_a_saved_folder_opens_through_the_auto_classes_with_its_decoder_tied(tmp_path):
    model, tokens = build(), ids(2, 9)
    model.resize_token_embeddings(40)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is FmmForCausalLM
    assert again.lm_head.weight is again.fmm.word_embeddings.weight
    assert again.lm_head.weight.shape == (40, 16)
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is FmmModel
    assert torch.equal(base(tokens).last_hidden_state, model.fmm(tokens).last_hidden_state)
    output = again(tokens, output_hidden_states=True)
    assert [tuple(states.shape) for states in output.hidden_states] == [(2, 9, 16)] * 3


def test_first_values_are_the_papers_and_the_programs(tmp_path):
    for blend, near, far in (("sigmoid", 0.0, 0.0), ("per_channel", 0.0, 0.5)):
        config = copy.deepcopy(build(blend=blend).config)
        attention = FmmForCausalLM(config).fmm.layers[1].attention
        assert (attention.near_weight == near).all()
        assert (attention.far_weight == far).all()
        assert not any(name.endswith("bias") for name, _ in attention.named_parameters())


def test_the_papers_size():
    """About 40M with words' vectors shared with the softmax; torch's adaptive softmax has vectors of its own, of fewer channels in the tail."""
    with torch.device("meta"):
        tied = FmmForCausalLM(FmmConfig())
        adaptive = FmmForCausalLM(FmmConfig(adaptive_cutoffs=[20_000, 40_000, 200_000]))
    counts = [round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) for model in (tied, adaptive)]
    assert counts == [43.8, 48.4]


def test_the_state_dict_names_are_frozen():
    model = build(num_hidden_layers=1, tie_word_embeddings=False)
    layer = ["attention." + name for name in ("near_weight", "far_weight", "write_strength.weight")]
    layer += [f"attention.{name}.weight" for name in ("query", "key", "value", "output")]
    modules = ("attention_norm", "intermediate", "output", "output_norm")
    layer += [f"{module}.{kind}" for module in modules for kind in ("weight", "bias")]
    expected = {"fmm.word_embeddings.weight", "lm_head.weight", *(f"fmm.layers.0.{name}" for name in layer)}
    assert set(model.state_dict()) == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bandwidth": None, "kernels": ["elu"]}, "softmax attention to all tokens has no kernels"),
        ({"bandwidth": 0, "kernels": []}, "give a band, kernels, or both"),
        ({"bandwidth": -2}, "bandwidth = -2"),
        ({"kernels": ["relu"]}, "kernels = ['relu']: name some of elu"),
        ({"blend": "mean"}, "blend"),
        ({"hidden_size": 15, "num_attention_heads": 3}, "hidden_size = 15: sinusoidal positions are pairs"),
        ({"num_attention_heads": 3}, "num_attention_heads = 3"),
        ({"adaptive_cutoffs": [5, 5]}, "adaptive_cutoffs = [5, 5]: give ascending places within 1..36"),
        ({"adaptive_cutoffs": [37]}, "adaptive_cutoffs = [37]"),
        ({"adaptive_cutoffs": [5, 9, 12]}, "adaptive_div_value = 4.0"),
        ({"hidden_act": "nope"}, "hidden_act = 'nope'"),
        ({"bandwith": 3}, "FmmConfig has no field 'bandwith'. Did you mean 'bandwidth'"),
    ],
    ids=str,
)
def test_a_field_without_sense_is_named(fields, words):
    with pytest.raises((ValueError, StrictDataclassError), match=re.escape(words)):
        build(**fields)
