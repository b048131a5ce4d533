"""Files here and behind URLs: written whole or not at all, read as if somebody else had written them."""
