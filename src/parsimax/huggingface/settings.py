"""Settings of ``enable`` in the config of a model, which ``save_pretrained`` writes.

They stand in the config of the outermost model. A part may be enabled again with others, or be
disabled, and only the part is given then: so every part knows the settings around it, and what
changes is noted there by the part's name.
"""

from __future__ import annotations

from typing import Any

from torch import nn

KEY = "parsimax"  # in a config
_OWN = "_parsimax_settings"  # of an outermost model
_AROUND = "_parsimax_around"  # of its parts: settings, and the name of the part in that model


class Settings(dict[str, Any]):
    """What ``enable`` was given, in the config of a model; read from a file it is a plain dict."""

    def note(self, part: str, said: dict[str, Any] | None) -> None:
        """That a part differs; None if it was disabled. What was noted inside of it is over."""
        parts: dict[str, Any] = self.setdefault("parts", {})
        for name in [name for name in parts if inside(name, part)]:
            del parts[name]
        parts[part] = said


def inside(name: str, part: str) -> bool:
    """Whether a module of that name is the part, or in it."""
    return name == part or name.startswith(f"{part}.")


def saved_settings(model: nn.Module) -> dict[str, Any] | None:
    """Settings in a config that came from a file."""
    found = getattr(getattr(model, "config", None), KEY, None)
    return dict(found) if isinstance(found, dict) and not isinstance(found, Settings) else None


def told(model: nn.Module) -> bool:
    """Whether a model was enabled, and not a part of it alone."""
    return _OWN in vars(model)


def tell(model: Any, said: dict[str, Any]) -> None:
    """Write settings of a model of transformers, and note them in those around it.

    Empty ones are of a model of which nothing is enabled but parts, which are noted later.
    """
    from transformers import PreTrainedModel

    around = vars(model).get(_AROUND, [])
    for settings, name in around:
        settings.note(name, said)
    own = vars(model)[_OWN] = Settings(said)
    for name, part in model.named_modules():
        if isinstance(part, PreTrainedModel) and part is not model:
            outer = [(settings, f"{prefix}.{name}") for settings, prefix in around]
            vars(part)[_AROUND] = [*outer, (own, name)]
            vars(part.config).pop(KEY, None)  # from a file: this model speaks for its parts
    model.config.parsimax = own  # last, since a part may share this config


def forget(model: nn.Module) -> None:
    """A model is disabled: drop settings inside, and note that in those around it."""
    gone = {id(vars(each).pop(_OWN)) for each in model.modules() if _OWN in vars(each)}
    noted: set[int] = set()
    for module in model.modules():
        around = vars(module).pop(_AROUND, [])
        around = [(settings, name) for settings, name in around if id(settings) not in gone]
        if not around:
            continue
        vars(module)[_AROUND] = around
        if id(module) not in noted:  # what is in a part goes with it
            for settings, name in around:
                settings.note(name, None)
            noted.update(id(part) for part in module.modules())
