"""The plan of a step as tables on a device: tiles of keys and queries, units of work, one buffer.

It knows the topology of a forest. It launches nothing.
"""

__all__ = [
    "device_plan",
    "plan_units",
    "step_buffer",
    "tiles",
    "work_units",
]
