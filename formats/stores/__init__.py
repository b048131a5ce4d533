"""Many videos, any frame of each: a page for every store, with its byte layout and its reader."""
