"""One file per group of commands: parse, call, print, exit code."""
