"""For the API pages: configurations are dataclasses, which huggingface_hub's @strict does not tell griffe."""

from typing import Any

import griffe


class StrictDataclasses(griffe.Extension):
    """Shows a @strict class's fields, inherited ones too, as its arguments, but for the `auto_map` that nobody sets."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        paths = [decorator.callable_path for decorator in cls.decorators]
        if "huggingface_hub.dataclasses.strict" in paths:
            dataclass = griffe.ExprName(
                "dataclass", parent=griffe.ExprName("dataclasses")
            )
            cls.decorators.append(
                griffe.Decorator(dataclass, lineno=None, endlineno=None)
            )
            cls.members.pop("auto_map", None)
