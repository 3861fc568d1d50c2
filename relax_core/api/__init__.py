"""The nouns and contracts between rooms, one file each. None of these modules imports torch except ``tokens``."""
