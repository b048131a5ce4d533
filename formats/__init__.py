"""vidprep.formats: what lies on disk. Outputs, their containers and encoders, and the manifest that describes them."""
