"""JSON Schema: what masks can enforce is rewritten to it, the rest is refused by its place."""
