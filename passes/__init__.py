"""One pass a file, named as on the command line (`nest_tile.py` is `nest-tile`)."""
