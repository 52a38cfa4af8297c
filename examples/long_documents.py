"""Lengthens a checkpoint and finetunes it to classify long documents: CSV or JSON lines with the columns `text` and `label`.

python examples/long_documents.py --model runs/mine --data documents.jsonl --output_dir runs/documents
"""

import argparse
from pathlib import Path

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

import s3bert  # noqa: F401  (registers S3BERT with Transformers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint: a folder or a Hub id")
    parser.add_argument("--data", required=True, help="CSV or JSONL file with the columns text and label")
    parser.add_argument("--output_dir", required=True, help="folder of the finetuned model")
    parser.add_argument("--max_length", type=int, default=2048, help="tokens of the longest document")
    parser.add_argument("--epochs", type=float, default=3)
    arguments = parser.parse_args()

    builder = "csv" if Path(arguments.data).suffix == ".csv" else "json"
    rows = load_dataset(builder, data_files=arguments.data, split="train").class_encode_column("label")
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, model_max_length=arguments.max_length)
    rows = rows.map(lambda batch: tokenizer(batch["text"], truncation=True), batched=True)
    rows = rows.train_test_split(test_size=0.2, seed=0)

    labels = rows["train"].features["label"].num_classes
    model = AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=labels)
    if model.config.max_position_embeddings < arguments.max_length:
        model.resize_position_embeddings(arguments.max_length)
    training = TrainingArguments(
        arguments.output_dir,
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=8,
        train_sampling_strategy="group_by_length",  # little padding, though documents differ much
        gradient_checkpointing=True,  # less memory, more time
        report_to="none",
    )
    data = {"train_dataset": rows["train"], "eval_dataset": rows["test"], "processing_class": tokenizer}
    trainer = Trainer(model, training, **data)
    trainer.train()
    right = trainer.predict(rows["test"]).predictions.argmax(-1) == rows["test"]["label"]
    print(f"accuracy on {len(right)} unseen documents of up to {arguments.max_length} tokens: {right.mean():.1%}")
    trainer.save_model(arguments.output_dir)


if __name__ == "__main__":
    main()
