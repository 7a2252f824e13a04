"""The helpers of `nest-to-array`: the program of one layer, as plain records."""
