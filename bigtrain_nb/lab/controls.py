"""What a Lab or a Planner lets the reader choose, and the check of what is chosen."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Choices:
    """One of several values: a list or tuple of anything, or a `range` of whole numbers; a switch has two."""

    values: list | tuple | range
    default: object

    @property
    def allowed(self) -> str:
        if isinstance(self.values, range):
            return f"a whole number from {self.values[0]} to {self.values[-1]} in steps of {self.values.step}"
        return "one of " + ", ".join(map(text, self.values))

    def accept(self, name, value):
        """Return the choice that equals `value`, where 1 is not True. Raises ValueError, which names it, if none."""
        if value in self.values:
            choice = self.values[self.values.index(value)]
            if isinstance(choice, bool) == isinstance(value, bool):
                return choice
        raise ValueError(f"{name}={text(value)} is not among the choices: expected {self.allowed}")


def control(name: str, given) -> Choices:
    """Return `Choices` from a list, a range, or True or False; it starts at the first choice, a switch as given."""
    if isinstance(given, bool):
        return Choices((False, True), given)
    if isinstance(given, list | range) and given:
        return Choices(given, given[0])
    raise ValueError(f"{name}={given!r}: expected a list of choices, a range of whole numbers, True or False")


def settings(controls: dict, given: dict) -> dict:
    """Return a value for every control: the given or its default. Raises ValueError for an unknown name or value."""
    for name in given:
        look_up(controls, name)
    return {name: one.accept(name, given.get(name, one.default)) for name, one in controls.items()}


def look_up(controls: dict, name: str) -> Choices:
    """Return the control of that name. Raises ValueError that names those there are."""
    if name not in controls:
        raise ValueError(f"unknown setting {name!r}: expected one of {', '.join(controls) or 'none'}")
    return controls[name]


def text(value) -> str:
    """A choice in words: a function by its name, a text without quotes."""
    return getattr(value, "__name__", None) or str(value)


def describe(chosen: dict) -> str:
    """Settings in one line: "batch=32 prefetch=2"."""
    return " ".join(f"{name}={text(value)}" for name, value in chosen.items())
