"""The helpers of passes on `nest`: which mapping each layer gets, and what stays in the GLB."""
