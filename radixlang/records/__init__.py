"""Many rows through one program, and runs saved to files: checkpoints and replays.

It knows programs and their results. It knows nothing of how a run is executed.
"""

__all__ = [
    "batch",
    "batch_threads",
    "checkpoint",
    "file_fields",
    "json_text",
    "made_by",
    "replay",
    "result",
    "result_file",
    "row_files",
    "rows",
    "typed_json",
]
