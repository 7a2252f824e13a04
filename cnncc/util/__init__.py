"""Files that are written whole, arrays that users bring, values kept on disk."""
