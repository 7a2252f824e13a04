"""`python -m cnncc`: the command line from a checkout, where the command `cnncc` is not installed."""

from cnncc.cli.main import main

main(prog_name="cnncc")
