"""What only an accelerator can show; deselected by default, `pytest -m gpu` runs it."""

import json

import pytest
import torch

from s3bert import S3BertConfig, S3BertForMaskedLM
from s3bert.commands import pretrain_mlm


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_outputs_on_the_gpu_are_those_of_the_cpu(norm):
    torch.manual_seed(0)
    model = S3BertForMaskedLM(
        S3BertConfig(vocab_size=500, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, smoother_norm=norm)
    ).eval()
    inputs = torch.randint(0, 500, (4, 333))
    mask = (torch.arange(333) < torch.tensor([[333], [200], [7], [1]])).long()
    with torch.no_grad():
        expected = model(inputs, attention_mask=mask).logits
        found = model.cuda()(inputs.cuda(), attention_mask=mask.cuda()).logits.cpu()
    assert ((found - expected)[mask.bool()].norm() / expected[mask.bool()].norm()).item() < 1e-4


def test_a_bf16_compiled_base_size_run_reports_tokens_per_second_and_mfu(tmp_path):
    words = ["--model_type", "s3bert", "--config_overrides", "sparse_prediction=true", "--dataset_name", "synthetic"]
    words += [
        "--vocab_size",
        "2048",
        "--per_device_train_batch_size",
        "32",
        "--max_train_steps",
        "60",
        "--eval_steps",
        "60",
    ]
    words += ["--mixed_precision", "bf16", "--torch_compile", "--output_dir", str(tmp_path), "--report_to", "none"]
    result = pretrain_mlm.main(words)
    last = [record for record in result.history if "mfu" in record][-1]
    print(json.dumps(last))
    assert last["loss"] < result.history[0]["loss"]
    assert 0 < last["mfu"] < 1
