"""Schedule files: a user's own mapping of some layers, as TOML. No IR. docs/schedule.md describes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cnncc.errors import Finding, Refusal, Refusals, hint, one_line, refusals_of
from cnncc.mapper.objective import Objective
from cnncc.mapping.notation import NotationError, read
from cnncc.passes._scheduling.dataflows import DATAFLOWS, check_dataflow
from cnncc.util.toml import read_text, read_toml

MOST_NUMBER = (1 << 31) - 1


@dataclass(frozen=True)
class LayerNumbers:
    """What a file says of a layer: tiles t…, unrolling p… and interleaving p, q of the thesis. None: all there is."""

    tif: int | None = None
    tof: int | None = None
    toy: int | None = None
    tox: int | None = None
    tky: int | None = None
    tkx: int | None = None
    poy: int = 1
    pox: int = 1
    pofv: int = 1
    pofh: int = 1
    p: int = 1
    q: int = 1


KEYS = tuple(field.name for field in dataclasses.fields(LayerNumbers))


@dataclass(frozen=True)
class MappingText:
    """What a file says of a layer in the notation of docs/mapping.md."""

    mapping: str


@dataclass(frozen=True)
class DataflowName:
    """A dataflow of `dataflows.py` for a convolution or a fully connected layer."""

    dataflow: str


Entry = LayerNumbers | MappingText | DataflowName
# Keys of tables that have no others.
ALONE: dict[str, type[MappingText | DataflowName]] = {"mapping": MappingText, "dataflow": DataflowName}


OUTPUT, RESIDENT, STREAMED = "output", "resident", "streamed"  # a key of any table, and its texts
WHOLE = ("objective", "slack", "lag")  # keys outside all tables


@dataclass(frozen=True)
class GivenGroup:
    """What a table of `[[group]]` says: as the options of `nest-group`."""

    layers: tuple[str, ...]
    rows: int
    delays: tuple[int, ...] = ()
    keeps: tuple[int, ...] = ()
    rowwise: bool = False
    columns: int = 0
    loads: bool = True
    single: bool = False


@dataclass(frozen=True)
class GivenCore:
    """What a table of `[[core]]` says: a core of `nest-cores`.

    keeps: rows of the channel behind it, 0 for the fewest.
    """

    layers: tuple[str, ...]
    place: str
    rows: int = 1
    delays: tuple[int, ...] = ()
    keeps: int = 0


GROUP, CORE = "group", "core"
FLAGS = {"rowwise": False, "loads": True, "single": False}  # keys of a group, and what they are without


@dataclass(frozen=True)
class Schedule:
    """What a schedule file says.

    - entries: of layers, by label
    - groups: of layers that run stripe by stripe
    - outputs: where the results of layers lie, RESIDENT or STREAMED, by label
    - objective: what the network is optimised for
    - cores: layers side by side, in the order of the layers; lag: by how many frames results leave behind images
    """

    entries: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    objective: Objective = Objective()
    groups: tuple[GivenGroup, ...] = ()
    cores: tuple[GivenCore, ...] = ()
    lag: int = 1


def objective_of(file: str | None, name: str | None, slack: float | None) -> Objective:
    """The objective of a name and a slack. What is None says the schedule file, if there is one. Raises Refusal."""
    given = read_schedule(file).objective if file else Objective()
    if slack is not None and name is None and given.name != Objective().name:
        raise Refusal(f"{file}: a slack is a share of the cycles: it has no effect with its objective {given.name}")
    return Objective(given.name if name is None else name, given.slack if slack is None else slack)


def read_schedule(file: str) -> Schedule:
    """What a schedule file says. Raises Refusal with a finding for all that is wrong."""
    refusals, entries, outputs = Refusals(), dict[str, Entry](), dict[str, str]()
    tables = _tables(file)
    # A table `["slack"]` is of a layer that is called so.
    whole = {key: tables.pop(key) for key in WHOLE if not isinstance(tables.get(key, {}), dict)}
    objective, groups, cores, lag = Objective(), list[GivenGroup](), list[GivenCore](), 1
    for number, table in enumerate(_listed_tables(tables, GROUP), 1):
        with refusals.kept(file):
            groups.append(_group(f"{file}: group {number}", table))
    for number, table in enumerate(_listed_tables(tables, CORE), 1):
        with refusals.kept(file):
            cores.append(_core(f"{file}: core {number}", table))
    with refusals.kept(file):
        name, slack = whole.get("objective", objective.name), whole.get("slack", objective.slack)
        if not isinstance(name, str) or isinstance(slack, bool) or not isinstance(slack, int | float):
            raise Refusal(f'{file}: an objective is a text, a slack a number: objective = "energy", slack = 0.01')
        with refusals_of(file):
            objective = Objective(name, slack)
        (lag,) = _whole(file, "lag", [whole.get("lag", 1)], one=True, least=1)
        if cores and (others := [*map(str, tables), *(["[[group]]"] if groups else []), *({*whole} - {"lag"})]):
            raise Refusal(
                f"{file}: beside [[core]] there is no {others[0]}: cores have all layers, and their own nests"
            )
        if "lag" in whole and not cores:
            raise Refusal(f"{file}: lag is of cores: it has no table [[core]]")
    for label, table in tables.items():
        wrong = list(_wrong(label, table))
        for finding in wrong:
            refusals.add(Refusal(f"{file}: '{one_line(finding.where, 80)}': {finding.text}", finding))
        if not wrong:
            keys = cast("dict[str, Any]", table)  # nothing is wrong, so it is a table with values of the right types
            if place := keys.pop(OUTPUT, None):
                outputs[label] = place
            if keys or not place:
                kind = next((ALONE[key] for key in keys if key in ALONE), LayerNumbers)
                entries[label] = kind(**keys)
    refusals.raise_any(file)
    return Schedule(entries, outputs, objective, tuple(groups), tuple(cores), lag)


def _listed_tables(tables: dict[str, object], name: str) -> list[object]:
    """The tables of `[[group]]` or `[[core]]`, which leave `tables`; a table `["group"]` is of a layer."""
    if not isinstance(tables.get(name), list):
        return []
    return cast("list[object]", tables.pop(name))


def _core(where: str, table: object) -> GivenCore:
    """A core that a table says. Raises Refusal."""
    keys = _keys(where, table, GivenCore)
    place = keys.get("place")
    if not isinstance(place, str):
        raise Refusal(f'{where}: place is a text, rows x columns of PEs at a row and a column: place = "1x2@3,0"')
    layers = _labels(where, keys.get("layers"), 'layers = ["pool1", "conv2"], place = "3x4@0,0"')
    rows, keeps = (_whole(where, name, [keys.get(name, 1)], one=True, least=1)[0] for name in ("rows", "keeps"))
    delays = _whole(where, "delays", keys.get("delays", []))
    return GivenCore(layers, place, rows, delays, keeps if "keeps" in keys else 0)


def _keys(where: str, table: object, kind: type[GivenGroup | GivenCore]) -> dict[str, Any]:
    """The keys of a table. Raises Refusal for an unknown one."""
    keys = cast("dict[str, Any]", table) if isinstance(table, dict) else {}
    names = [field.name for field in dataclasses.fields(kind)]
    if unknown := next((key for key in keys if key not in names), None):
        raise Refusal(f"{where}: unknown key '{one_line(unknown, 40)}': {hint(unknown, names)}")
    return keys


def _labels(where: str, layers: object, example: str) -> tuple[str, ...]:
    """The labels of a list. Raises Refusal where there are none."""
    names = cast("list[object]", layers) if isinstance(layers, list) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise Refusal(f"{where}: layers is a list of labels, one or more: {example}")
    return tuple(cast("list[str]", names))


def _group(where: str, table: object) -> GivenGroup:
    """A group that a table says. Raises Refusal."""
    keys = _keys(where, table, GivenGroup)
    layers = _labels(where, keys.get("layers"), 'layers = ["conv1", "conv2"], rows = 2')
    (rows,) = _whole(where, "rows", [keys.get("rows")], one=True, least=1)
    (columns,) = _whole(where, "columns", [keys.get("columns", 0)], one=True)
    delays, keeps = (_whole(where, name, keys.get(name, [])) for name in ("delays", "keeps"))
    rowwise, loads, single = (_flag(where, name, keys.get(name, default)) for name, default in FLAGS.items())
    return GivenGroup(layers, rows, delays, keeps, rowwise, columns, loads, single)


def _flag(where: str, name: str, value: object) -> bool:
    """Raises Refusal for what is none."""
    if not isinstance(value, bool):
        raise Refusal(f"{where}: {name} is true or false")
    return value


def _whole(where: str, name: str, value: object, one: bool = False, least: int = 0) -> tuple[int, ...]:
    """The whole numbers of a key, of which there may be several, or one. Raises Refusal where there are none."""
    numbers = cast("list[object]", value) if isinstance(value, list) else [None]
    whole = tuple(each for each in numbers if isinstance(each, int) and not isinstance(each, bool))
    if len(whole) < len(numbers) or not all(least <= each <= MOST_NUMBER for each in whole):
        what = "a whole number" if one else "a list of whole numbers"
        given = numbers[0] if one else cast("object", value)
        said = "it is missing" if given is None else f"not {one_line(repr(given), 40)}"
        raise Refusal(f"{where}: {name} is {what}, from {least} to {MOST_NUMBER:,}: {said}")
    return whole


def _tables(file: str) -> dict[str, object]:
    try:
        if Path(file).is_fifo():
            raise Refusal(f"{file}: a schedule is read several times, and this is a pipe: write it to a file")
        return read_toml(read_text(Path(file)), file)
    except UnicodeDecodeError as error:
        raise Refusal(f"{file}: not TOML: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise Refusal(f"{file}: {getattr(error, 'strerror', None) or error}") from error


def _wrong(label: str, table: object) -> Iterable[Finding]:
    if not isinstance(table, dict):
        help_ = f'tables are named by layers: ["conv1"]; outside of them stand {", ".join(WHOLE)}'
        yield Finding("stands outside every table", where=label, help=help_)
        return
    keys = cast("dict[str, object]", table)  # the keys of TOML are texts
    for key, value in keys.items():
        if key == OUTPUT:
            if value not in (RESIDENT, STREAMED):
                expected, value = f'expected "{RESIDENT}" or "{STREAMED}"', one_line(repr(value), 40)
                yield Finding(expected, where=label, resource=key, value=value)
        elif key in ALONE:
            yield from _wrong_text(label, key, keys)
        elif key not in KEYS and isinstance(value, dict):
            help_ = f'a label with dots stands in quotes: ["{label}.{key}"]'
            yield Finding(f"a table in a table, '{key}'", where=label, resource=key, help=help_)
        elif key not in KEYS:
            help_ = hint(key, (*KEYS, *ALONE, OUTPUT))
            if label in (GROUP, CORE):
                help_ = f"two brackets begin a {label}: [[{label}]]; this is a layer '{label}'"
            yield Finding(f"unknown key '{key}'", where=label, resource=key, help=help_)
        elif isinstance(value, bool) or not isinstance(value, int):
            given = one_line(repr(value), 40)
            yield Finding(f"{key} is a whole number, not {given}", where=label, resource=key, value=given)
        elif not 1 <= value <= MOST_NUMBER:
            given = one_line(str(value), 40)
            yield Finding(f"{key} is from 1 to {MOST_NUMBER:,}, not {given}", where=label, resource=key)


def _wrong_text(label: str, key: str, table: dict[str, object]) -> Iterable[Finding]:
    if more := [other for other in table if other in (*KEYS, *ALONE) and other != key]:
        what, help_ = f"a {key} and '{more[0]}'", f"the {key} says all: leave out {', '.join(more)}"
        yield Finding(what, where=label, resource=key, help=help_)
    text, example = table[key], {"mapping": '"n > k > …"', "dataflow": '"ws"'}[key]
    if not isinstance(text, str):
        value = one_line(repr(text), 40)
        yield Finding("not a text", where=label, resource=key, value=value, help=f"{key} = {example}")
        return
    try:
        read(text) if key == "mapping" else check_dataflow(text, DATAFLOWS)
    except NotationError as error:
        yield Finding(error.message, where=label, resource=key, excerpt=error.excerpt)
    except Refusal as refusal:
        yield Finding(str(refusal), where=label, resource=key)
