"""The usual opt tool for cnncc's IR: all dialects and passes, `.onnx` as input, weights beside the IR.

    cnncc opt MODEL.onnx|IN.mlir [-p PASSES] [-o OUT.mlir] [--batch N]
    cnncc opt --passes [NAME]

Weights of `NAME.mlir` are read from `NAME.npz`, else from `weights.npz`, in the same folder;
`-o OUT.mlir` writes them to `OUT.npz`.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.universe import Universe
from xdsl.utils.arg_spec import ArgSpec, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError
from xdsl.xdsl_opt_main import xDSLOptMain

from cnncc.context import CompilerContext, to_stderr, warning_to_stderr
from cnncc.driver.ir_files import check_order, checked_text, dump_file, ir_bytes, load_weights, user_errors
from cnncc.errors import Refusal, hint, one_line
from cnncc.frontend.import_onnx import import_onnx
from cnncc.frontend.input_shapes import input_shape, shapes_of
from cnncc.universe import PASSES, known_dialects
from cnncc.util.files import check_writable, is_stream, unfinished


def run_opt(args: Sequence[str], about: str = "") -> None:
    """Run the tool with command line `args`. about: what its help begins with.

    Raises: Refusal, for the user's errors; SystemExit(2) from argparse, for wrong usage.
    """
    with user_errors():
        OptMain(args, about).run()


class OptMain(xDSLOptMain):
    """xDSL's opt with a compiler context, cnncc's dialects and passes, ONNX input and weight files."""

    ctx: CompilerContext
    parts: dict[Path, Path]  # output files, and where they are written first

    def __init__(self, args: Sequence[str], about: str) -> None:
        self.about = about
        super().__init__(args=args)

    def register_all_dialects(self) -> None:
        """Register all dialects."""
        self.ctx = CompilerContext(note=to_stderr, warning=warning_to_stderr)
        for name, factory in known_dialects().items():
            self.ctx.register_dialect(name, factory)

    def register_all_passes(self) -> None:
        """Register all passes, as `known_dialects` does; the help lists cnncc's own first."""
        # The first PASSES gives the order, the last one lets no other package take the name of a pass of cnncc.
        known: dict[str, Callable[[], type[ModulePass]]] = PASSES | Universe.get_multiverse().all_passes | PASSES
        for name, factory in known.items():
            self.register_pass(name, factory)

    def register_all_frontends(self) -> None:
        """Add ONNX files, and read weights beside MLIR files."""
        super().register_all_frontends()

        def parse_with_weights(stream: IO[bytes]) -> ModuleOp:
            if self.args.input_file is not None:
                load_weights(Path(self.args.input_file), self.ctx)
            text = checked_text(stream.read(), self.get_input_name())
            try:
                module = Parser(self.ctx, text, self.get_input_name()).parse_module(not self.args.no_implicit_module)
                check_order(module, self.get_input_name())
                return module
            except RecursionError as error:
                raise Refusal(f"{self.get_input_name()}: nested too deeply") from error
            except (ValueError, OverflowError, NotImplementedError) as error:  # attributes out of range
                raise Refusal(f"{self.get_input_name()}: {one_line(str(error))}") from error

        def parse_onnx(_: IO[bytes]) -> ModuleOp:
            return import_onnx(Path(self.get_input_name()), self.ctx, self.args.batch, shapes_of(self.args.shape))

        self.available_frontends |= {"mlir": parse_with_weights, "onnx": parse_onnx}

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        """Add the option of ONNX files. The help says how the tool is used, and leaves lists of names to others."""
        arg_parser.prog = "cnncc opt"
        arg_parser.usage = "cnncc opt [FILE.mlir | MODEL.onnx] [-p PASSES] [-o OUT.mlir] [OPTION]..."
        arg_parser.description, arg_parser.formatter_class = self.about, argparse.RawDescriptionHelpFormatter
        super().register_all_arguments(arg_parser)
        # xDSL has options of these names, which these replace.
        own = arg_parser.add_argument_group("options that most uses need", conflict_handler="resolve")
        passes = "passes with commas between, each with its options: 'nest-tile{dim=h size=4},nest-normalise'"
        own.add_argument("-p", "--passes", default="", metavar="PASSES", help=passes)
        own.add_argument("-o", "--output-file", metavar="OUT.mlir", help="weights go to OUT.npz; default: the terminal")
        own.add_argument("-t", "--target", default="mlir", help="form of the output; `xdsl-opt --help` has a list")
        own.add_argument("--batch", type=int, metavar="N", help="size of a symbolic batch dimension of MODEL.onnx")
        sizes = "of an input (or output) of MODEL.onnx with symbolic dims: images=1,3,224,224"
        own.add_argument("--shape", type=input_shape, action="append", default=[], metavar="NAME=SIZES", help=sizes)

    def setup_pipeline(self) -> None:
        """Parse the pass list, which may go over several lines. Raises Refusal for an unknown pass or option."""
        self.args.passes = "".join(map(str.strip, (self.args.passes or "").splitlines()))
        try:
            for spec in parse_pipeline(self.args.passes):
                self._check(spec.normalize_parameter_names())
            _check_once(self.args.passes)
            super().setup_pipeline()
        except (ArgSpecParseError, ValueError) as error:
            ends = self.args.passes.count("{") <= self.args.passes.count("}")
            malformed = "options of a pass stand with spaces between" if ends else "a `}` is missing"
            what = f"{malformed}: " if "Malformed pass arguments" in str(error) else ""
            if "Unknown token" in str(error) and "{" in self.args.passes:
                what = 'text with other characters than letters, digits, - and _ stands in quotes, "mine.toml": '
            raise Refusal(f"-p: {what}{one_line(str(error))}") from error

    def _check(self, spec: ArgSpec) -> None:
        """Raise Refusal for a name that no pass, or no option of the pass, has, and for a value that is not one."""
        if spec.name not in self.available_passes:
            near = difflib.get_close_matches(spec.name, self.available_passes, 1)
            known = f"did you mean '{near[0]}'?" if near else "`cnncc opt --passes` lists them"
            raise Refusal(f"-p: no pass '{spec.name}': {known}")
        pass_ = self.available_passes[spec.name]()
        options = [field.name for field in dataclasses.fields(pass_)]
        for option in spec.parameters:
            if option not in options:
                raise Refusal(f"-p: {spec.name} has no option '{option}': {hint(option, options)}")
        try:
            pass_.from_pass_spec(spec)
        except ValueError as error:
            what = one_line(str(error).removeprefix(f"{spec.name} "))
            raise Refusal(f"-p: {spec.name}: {what}: see `cnncc opt --passes {spec.name}`") from error

    def prepare_input(self) -> tuple[list[tuple[IO[bytes], int]], str]:
        """Open the input. Raises Refusal for a file that is neither MLIR nor ONNX."""
        if self.args.input_file is not None:
            file = dump_file(Path(self.args.input_file))
            self.args.input_file = str(file)
            if file.suffix == ".mlir":
                ir_bytes(file)  # xDSL reads a file of any size
        elif sys.stdin.isatty():
            raise Refusal("no input: give FILE.mlir or MODEL.onnx, or pipe IR in")
        try:
            return super().prepare_input()
        except ValueError as error:
            raise Refusal(f"{self.get_input_name()}: expected a .mlir or .onnx file") from error

    def prepare_output(self) -> IO[str]:
        """Open a file beside the output, which replaces it after success; a device or a pipe itself."""
        if self.args.output_file is None:
            return sys.stdout
        output = Path(self.args.output_file)
        return (output if is_stream(output) else self.parts[output.resolve()]).open("w")

    def run(self) -> None:
        """Read, apply the passes, and write all or nothing."""
        output = Path(self.args.output_file or "-")
        if self.args.output_file is None or is_stream(output):
            super().run()
            return
        # A link stays one: what it leads to is replaced.
        target, weights = output.resolve(), output.with_suffix(".npz").resolve()
        check_writable(output)
        output.parent.mkdir(parents=True, exist_ok=True)
        self.parts = {path: unfinished(path) for path in (target, weights)}
        try:
            super().run()
            if len(self.ctx.weights):
                self.parts[weights].write_bytes(self.ctx.weights.to_bytes())
            for path, part in self.parts.items():
                if part.exists():
                    part.replace(path)
        finally:
            for part in self.parts.values():
                part.unlink(missing_ok=True)


def _check_once(passes: str) -> None:
    """Refuse an option that a pass in a list has twice: the parser would take the last one. Raises Refusal."""
    without_texts = re.sub(r'"(?:[^"\\]|\\.)*"', "", passes)
    for name, options in re.findall(r"([\w-]+)\{([^{}]*)\}", without_texts):
        names = [option.partition("=")[0].replace("_", "-") for option in options.split()]
        if twice := next((each for each in names if names.count(each) > 1), None):
            raise Refusal(f"-p: {name} has the option '{twice}' twice: give it once")
