"""Finding the commit that changed the numerics: a pure search, its journal, and what drives them."""
