"""For the API pages: configurations are dataclasses, which huggingface_hub's @strict does not tell griffe."""

from typing import Any

import griffe


class StrictDataclasses(griffe.Extension):
    """Shows a @strict class's fields, inherited ones too, as arguments of its constructor."""

    def on_class_instance(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        if any(
            decorator.callable_path == "huggingface_hub.dataclasses.strict"
            for decorator in cls.decorators
        ):
            dataclass = griffe.ExprName(
                "dataclass", parent=griffe.ExprName("dataclasses")
            )
            cls.decorators.append(
                griffe.Decorator(dataclass, lineno=None, endlineno=None)
            )
