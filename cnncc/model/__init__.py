"""What a mapped layer and a program of such layers cost, exactly: by analysis, without IR or instructions."""
