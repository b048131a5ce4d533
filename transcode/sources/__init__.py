"""A folder, a file, a table or a URL becomes units. Opens no video."""
