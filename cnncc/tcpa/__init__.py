"""Layers side by side on a tightly coupled processor array: the calculus of Heidorn et al., and its corrections."""
