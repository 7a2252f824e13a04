"""`cnncc explore`: a network on all arrays that some keys of the architecture file span."""
