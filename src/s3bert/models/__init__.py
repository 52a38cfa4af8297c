"""The networks. Files here import only torch, transformers and one another, by `from .name import Thing`, because
bundle.py merges them into a checkpoint's two code files by following exactly that form."""
