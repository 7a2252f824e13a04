"""Files written whole or not at all, users' arrays, and a cache on disk."""
