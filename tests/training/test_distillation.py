"""Distillation: the loss is Hinton's, the teacher changes nothing but the loss, and a run goes on with it to the last digit."""

import shutil

import pytest
import torch
from accelerate.state import AcceleratorState
from tiny_pretraining import NO_DROPOUT, SIZES, exact, pretrain
from transformers import BertConfig, BertForMaskedLM, set_seed

from s3bert import S3BertConfig, S3BertForMaskedLM
from s3bert.experiments.distillation import Distillation, distillation_loss
from s3bert.models.sparse_baselines import SPARSE_BASELINES


BERT = {name: value for name, value in SIZES.items() if not name.startswith("num_s") and "samples" not in name}


def teacher(sparse: bool = True) -> torch.nn.Module:
    set_seed(5)
    model = (SPARSE_BASELINES["bert"] if sparse else BertForMaskedLM)(BertConfig(**BERT))
    for parameter in model.parameters():
        parameter.data *= 3  # far from uniform
    return model


def around(weight: float = 0.5, **kinds: bool) -> dict:
    return {"around_step": Distillation(teacher(**kinds), weight, 2.0)}


def losses(result) -> list[float]:
    return [record["loss"] for record in result.history if "loss" in record]


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_loss_and_its_gradient_are_the_formula(temperature):
    student, taught = torch.randn(2, 5, 7, dtype=torch.float64)
    student.requires_grad_()
    labels = torch.tensor([3, -100, 0, 6, -100])
    loss = distillation_loss(student, taught, labels, temperature)
    loss.backward()
    expected, gradient = 0.0, torch.zeros_like(student)
    for row in (0, 2, 3):
        p, q = ((logits[row] / temperature).exp() for logits in (taught, student.detach()))
        p, q = p / p.sum(), q / q.sum()
        expected += float((p * (p / q).log()).sum()) * temperature**2 / 3
        gradient[row] = temperature * (q - p) / 3
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(student.grad, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("of_teacher", [True, False])
@pytest.mark.parametrize("of_student", [True, False])
def test_sparse_and_whole_logits_give_one_loss(of_teacher, of_student):
    student = S3BertForMaskedLM(S3BertConfig(**SIZES | NO_DROPOUT, sparse_prediction=of_student))
    ids, chosen = torch.randint(5, 99, (3, 24)), torch.rand(3, 24) < 0.2
    batch = {"input_ids": ids, "labels": ids.where(chosen, -100)}
    plain = student(**batch).loss.item()
    taught = teacher(sparse=False).eval()(ids).logits[chosen]
    logits = student(input_ids=ids).logits[chosen]
    expected = 0.7 * plain + 0.3 * distillation_loss(logits, taught, ids[chosen], 2.0)
    distil = Distillation(teacher(sparse=of_teacher), 0.3, 2.0)
    distil(1, student, [])
    batch["max_predictions"] = int(chosen.sum()) + 3
    torch.testing.assert_close(student(**batch).loss, expected)
    student.eval()
    distil.teacher.forward = None  # which an evaluation does not call
    assert student(**batch).loss.isfinite()


def test_without_weight_training_is_plain_to_the_last_digit(tmp_path):
    plain = pretrain(tmp_path / "plain", max_train_steps=4)
    taught = pretrain(tmp_path / "taught", max_train_steps=4, around=around(0.0))
    assert exact(taught.history) == exact(plain.history)
    assert losses(pretrain(tmp_path / "half", max_train_steps=4, around=around(0.5))) != losses(plain)


def test_accumulation_changes_nothing(tmp_path):
    settings = {"max_train_steps": 3, "model_settings": NO_DROPOUT | {"smoother_norm": "layer"}}
    whole = pretrain(tmp_path / "whole", around=around(), **settings)
    parts = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    assert losses(pretrain(tmp_path / "parts", around=around(), **settings, **parts)) == pytest.approx(
        losses(whole), rel=1e-5
    )


def test_a_run_goes_on_with_its_teacher_and_no_other(tmp_path):
    settings = {"max_train_steps": 6}
    whole = pretrain(tmp_path / "run", around=around() | {"settings": {"teacher": "a"}}, **settings)
    assert {path.name for path in (tmp_path / "run" / "checkpoint-6").glob("*.safetensors")} == {
        "model.safetensors",
        "optimizer.safetensors",
    }
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    settings["resume_from_checkpoint"] = "latest"
    with pytest.raises(ValueError, match="teacher: 'a' -> 'b'"):
        pretrain(tmp_path / "run", around=around() | {"settings": {"teacher": "b"}}, **settings)
    resumed = pretrain(tmp_path / "run", around=around() | {"settings": {"teacher": "a"}}, **settings)
    assert exact(resumed.history) == exact(whole.history)


def test_the_teacher_computes_under_the_runs_autocast_in_evaluation_mode(tmp_path):
    told = around()
    seen = []
    model = told["around_step"].teacher
    model.register_forward_hook(lambda module, _, output: seen.append((output.logits.dtype, module.training)))
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        pretrain(tmp_path / "run", max_train_steps=2, mixed_precision="bf16", around=told)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert seen == [(torch.bfloat16, False)] * 2
