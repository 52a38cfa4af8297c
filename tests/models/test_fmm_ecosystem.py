"""FMMformer's language model in other hands: Transformers' Trainer and pipelines, PEFT, and torch's compiler and exporter."""

import copy

import peft
import pytest
import torch
from reference import relative_error
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

from s3bert import FmmConfig, FmmForCausalLM
from s3bert.models.exporting import export_program, save_onnx


WORDS = ["[PAD]", "[UNK]", "the", "cat", "dog", "sees", "and", "hears", "a", "small", "old", "bird", "that", "sings"]


def build(**overrides) -> FmmForCausalLM:
    """Tiny, in evaluation, with all that a layer may have."""
    fields = {
        "vocab_size": len(WORDS),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "bandwidth": 5,
        "kernels": ["elu", "delta_elu"],
        "initializer_range": 0.3,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    return FmmForCausalLM(FmmConfig(**fields | overrides)).eval()


def batch(batch_size: int = 3, length: int = 12) -> dict[str, torch.Tensor]:
    """Token ids and a mask of padding on the left, of half of the last sequence."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, len(WORDS), (batch_size, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, : length // 2] = 0
    return {"input_ids": ids, "attention_mask": mask}


def train(model: torch.nn.Module, folder, **settings) -> Trainer:
    """Three steps of the Trainer; the model is saved in `folder`."""
    settings = {"per_device_train_batch_size": 4, "max_steps": 3, "learning_rate": 0.01, "logging_steps": 1} | settings
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    rows = [{"input_ids": ids, "labels": ids} for ids in batch(12)["input_ids"]]
    trainer = Trainer(model, TrainingArguments(output_dir=str(folder), **quiet, **settings), train_dataset=rows)
    trainer.train()
    trainer.save_model()
    return trainer


@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_trainer_trains_and_its_folder_opens_again(tmp_path, checkpointed):
    model, inputs = build(hidden_dropout_prob=0.0), batch()
    before = model(**inputs).logits
    trainer = train(model, tmp_path, gradient_checkpointing=checkpointed)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3
    again, trained = AutoModelForCausalLM.from_pretrained(tmp_path), model.eval()(**inputs).logits
    assert torch.equal(again(**inputs).logits, trained)
    assert relative_error(trained, before) > 0.01


def test_accumulated_micro_batches_train_as_one_batch(tmp_path):
    steps = []
    for batch_size, accumulation in ((12, 1), (2, 6)):
        model = build(hidden_dropout_prob=0.0)
        initial = copy.deepcopy(model)
        settings = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
        plain = {"max_steps": 1, "optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant"}
        train(model, tmp_path, max_grad_norm=0.0, **settings, **plain)
        moved = [model.get_parameter(name) - value for name, value in initial.named_parameters()]
        steps.append(torch.cat([step.flatten() for step in moved]))
    assert relative_error(*steps) < 1e-4


def test_lora_finds_queries_and_values_trains_and_opens_again(tmp_path):
    inputs = batch()
    adapted = peft.get_peft_model(build(), peft.LoraConfig(task_type="CAUSAL_LM", r=2))
    names = {
        name.split(".lora_")[0].split("attention.")[1] for name, _ in adapted.named_modules() if ".lora_A." in name
    }
    assert names == {"query", "value"}
    train(adapted, tmp_path)
    trained = adapted.eval()(**inputs).logits
    assert relative_error(trained, build()(**inputs).logits) > 1e-3
    again = peft.PeftModel.from_pretrained(build(), tmp_path).eval()
    assert torch.equal(again(**inputs).logits, trained)
    assert torch.equal(*(model.generate(**inputs, max_new_tokens=5) for model in (again, adapted)))
    assert relative_error(again.merge_and_unload()(**inputs).logits, trained) < 1e-5


@pytest.mark.parametrize("masked", [False, True])
def test_a_compiled_forward_is_one_graph_that_equals_eager(masked):
    model, inputs = build(num_hidden_layers=1), batch() if masked else {"input_ids": batch()["input_ids"]}
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        expected, output = model(**inputs), compiled(**inputs)
    assert relative_error(output.logits, expected.logits) < 1e-5
    state, own = (result.past_key_values.layers[0].state for result in (output, expected))
    for tensor, other in zip((state.keys, *state.sums), (own.keys, *own.sums), strict=True):
        assert relative_error(tensor, other) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    ("bandwidth", "kernels"), [(None, []), (5, ["elu", "delta_elu"])], ids=["softmax", "FMMformer"]
)
def test_an_exported_forward_takes_any_batch_and_length(bandwidth, kernels):
    model = build(bandwidth=bandwidth, kernels=kernels, num_hidden_layers=1, use_cache=False)
    run = export_program(model, longest=150).module()
    for batch_size, length in ((1, 1), (2, 4), (4, 64), (1, 65), (2, 150)):
        inputs = batch(batch_size, length)
        assert relative_error(run(**inputs)["logits"], model(**inputs).logits) < 1e-5


def test_an_operation_without_onnx_is_named(tmp_path):
    class Solver(torch.nn.Module):  # as the delta rule of fast weights
        def forward(self, x):
            return {"y": torch.linalg.solve_triangular(x, x, upper=False)}

    program = torch.export.export(Solver(), (torch.eye(3),))
    with pytest.raises(ValueError, match=r"^The model computes aten.linalg_solve_triangular, which ONNX does not have"):
        save_onnx(program, tmp_path / "model.onnx")


def test_a_pipeline_continues_prompts_padded_on_the_left_as_each_alone(tmp_path):
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", padding_side="left"
    )
    tokenizer.save_pretrained(tmp_path)
    build().save_pretrained(tmp_path)
    generate = pipeline("text-generation", model=str(tmp_path), device="cpu")
    how = {"max_new_tokens": 8, "do_sample": False, "return_full_text": False, "suppress_tokens": [0, 1]}
    prompts = ["the cat sees a small old bird that sings and", "a dog", "the"]
    together = [texts[0]["generated_text"] for texts in generate(prompts, batch_size=3, **how)]
    alone = [generate(prompt, **how)[0]["generated_text"] for prompt in prompts]
    assert together == alone
    assert len({*together}) == 3
