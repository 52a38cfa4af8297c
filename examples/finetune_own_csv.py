r"""Finetunes a checkpoint to classify your own rows: CSV or JSON lines with the columns `text` and `label`.

python examples/finetune_own_csv.py --model checkpoints/s3bert-small-en --data reviews.csv --learning_rate 1e-3 \
    --output_dir runs/reviews

The checkpoint needs that rate: its weights have grown in pretraining, and steps of the usual 5e-5 hardly move them.
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
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    arguments = parser.parse_args()
    if Path(arguments.output_dir).resolve() == Path(arguments.model).resolve():
        parser.error(f"--output_dir {arguments.output_dir} is the checkpoint, which would be replaced: name another.")

    builder = "csv" if ".csv" in Path(arguments.data).suffixes else "json"
    rows = load_dataset(builder, data_files=arguments.data, split="train")
    for column in ("text", "label"):
        if column not in rows.column_names:
            parser.error(
                f"{arguments.data} has no column {column}, only {', '.join(rows.column_names)}: rename one to it."
            )
        for number, value in enumerate(rows[column], 1):
            if value is None or value != value or not str(value).strip():
                parser.error(
                    f"{arguments.data}, row {number} behind the header has no {column}: fill it in, or take the row out."
                )
    rows = rows.class_encode_column("label")
    labels = rows.features["label"].names
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    rows = rows.map(lambda batch: tokenizer(batch["text"], truncation=True), batched=True)
    rows = rows.train_test_split(test_size=0.2, seed=0)

    names = {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    model = AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=len(labels), **names)
    training = TrainingArguments(
        arguments.output_dir,
        num_train_epochs=arguments.epochs,
        learning_rate=arguments.learning_rate,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        report_to="none",
    )
    trainer = Trainer(
        model,
        training,
        train_dataset=rows["train"],
        eval_dataset=rows["test"],
        processing_class=tokenizer,
        compute_metrics=lambda result: {"accuracy": float((result.predictions.argmax(-1) == result.label_ids).mean())},
    )
    trainer.train()
    print(f"accuracy on {len(rows['test'])} unseen rows: {trainer.evaluate()['eval_accuracy']:.1%}")
    trainer.save_model(arguments.output_dir)


if __name__ == "__main__":
    main()
