"""The networks. Files here import only torch, transformers and one another, by `from .name import Thing`, because
`save_pretrained` copies them into the checkpoint by following exactly that form."""
