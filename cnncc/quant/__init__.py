"""The mathematics of quantisation, without IR."""
