"""``a.b=c`` arguments: small repairs before hydra reads them, plain words after it refuses them.

Three things surprise people on the command line (FC-48): a value with ``<``, ``>`` or ``|`` needs
quotes of its own inside the shell's, ``a,b`` means a sweep rather than a list, and a number is not
accepted as the name of a group's option. The first two are explained, the third is repaired.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from omegaconf import DictConfig, OmegaConf

QUOTING = (
    "put the value in quotes inside the shell's: \"key='<tag>'\", a list as \"key=['<a>','<b>']\""
)


def normalise(override: str, groups: Sequence[str]) -> str:
    """Quote a group option that is a bare number, which hydra would read as one.

    >>> normalise("budget=8", ["budget"])
    "budget='8'"
    >>> normalise("tree.M=8", ["budget"])
    'tree.M=8'
    """
    key, equals, value = override.partition("=")
    if equals and key in groups and re.fullmatch(r"[\d.]+", value):
        return f"{key}='{value}'"
    return override


def explain(
    error: Exception, overrides: Sequence[str], options: Mapping[str, Sequence[str]]
) -> str:
    """What was wrong with ``overrides``, what was expected and what to do; one paragraph."""
    told = " ".join(str(error.__cause__ or error).split())
    unknown = re.search(r"Key '.*' is not in struct full_key: (\S+)", told)
    if unknown:
        return _unknown_key(unknown[1])
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals and not key.startswith("~"):
            return f"got the argument {override!r}, expected KEY=VALUE; add the value after a ="
        if key in options and value.strip("'\"") not in options[key]:
            near = difflib.get_close_matches(value, options[key], n=1, cutoff=0.4)
            hint = f"did you mean {key}={near[0]}? " if near else ""
            return (
                f"{key}={value} names no option of the group {key}; {hint}"
                f"expected one of: {', '.join(options[key])}"
            )
        if re.search(r"[<>|]", value) and not re.search(r"['\"]", value):
            return f"cannot read {override!r}: it holds <, > or | unquoted; {QUOTING}"
        if f"argument '{override}'" in told and "," in value:
            return f"{override!r} reads as a sweep; for a list write '{key}=[{value}]'"
        if override.startswith("+") and "already at" in told and f"'{key[1:]}'" in told:
            return f"{override!r} adds a key that is there already; drop the + to change it"
    return f"hydra cannot compose the configuration: {told}; where a value is special, {QUOTING}"


def _unknown_key(key: str) -> str:
    from verl_tree_grpo.recipe import compose

    near = difflib.get_close_matches(key, keys_of(compose([])), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"unknown key {key}; {hint}expected one of the keys of configs/train.yaml or of verl's "
        f"ppo_trainer; to add a key that verl reads but does not list, write +{key}=VALUE"
    )


def keys_of(config: DictConfig, prefix: str = "") -> list[str]:
    """Every dotted key of a nested configuration; interpolations stay unresolved."""
    keys: list[str] = []
    for name in map(str, config):
        keys.append(f"{prefix}{name}")
        if OmegaConf.is_interpolation(config, name) or OmegaConf.is_missing(config, name):
            continue
        if OmegaConf.is_dict(config[name]):
            keys += keys_of(config[name], f"{prefix}{name}.")
    return keys
