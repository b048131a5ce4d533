"""One row per unit, in Parquet: its columns, what each can hold, and the journal of a run."""
