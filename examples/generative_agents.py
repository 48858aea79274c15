"""A village of four: every hour, every agent decides at the same time where to go, and says why.

All agents share the description of the village; each agent's memory is its own branch, which
grows hour by hour and is never computed again (Park et al. 2023, arXiv:2304.03442). Places are a
Literal: nobody goes where no place is.
"""

from __future__ import annotations

from typing import Literal

import radixlang
from radixlang import gen, savings

Place = Literal["bakery", "garden", "school", "harbour", "tavern"]
VILLAGE = """\
The village has a bakery, a garden, a school, a harbour and a tavern.

Ben the carpenter works in the workshop.
At 9 in the morning Ben goes to the workshop, because he makes a chair.
At 3 in the afternoon Ben goes to the garden, because the sun is out.
At 8 in the evening Ben goes to the tavern, because he wants to see his friends.

Eva the doctor works in the hospital.
At 9 in the morning Eva goes to the hospital, because a child is ill.
At 3 in the afternoon Eva goes to the bakery, because she is hungry.
At 8 in the evening Eva goes to the tavern, because there is music.

"""
AGENTS = {"Mia": "baker", "Tom": "teacher", "Ada": "fisher", "Leo": "gardener"}
WORK = ("bakery", "school", "harbour", "garden")
HOURS = ("9 in the morning", "3 in the afternoon", "8 in the evening")


@radixlang.function
def day(s):
    s += VILLAGE
    with s.fork(len(AGENTS)) as agents:
        agents += [f"{name} the {job} works in the {place}.\n"
                   for (name, job), place in zip(AGENTS.items(), WORK, strict=True)]  # fmt: skip
        for hour in HOURS:
            place, why = f"place {hour}", f"why {hour}"
            for agent, name in zip(agents, AGENTS, strict=True):
                agent += f"At {hour} {name} goes to the " + gen(place, Place, temperature=0)
                agent += ", because" + gen(why, temperature=0.8, max_tokens=16, stop=(".", "\n"))
                agent += ".\n"
    return {hour: [(agent[f"place {hour}"], agent[f"why {hour}"]) for agent in agents]
            for hour in HOURS}  # fmt: skip


def main() -> None:
    with radixlang.Runtime() as runtime:
        for hour, choices in day(runtime=runtime, seed=5).result.items():
            print(f"at {hour}")
            for name, (place, why) in zip(AGENTS, choices, strict=True):
                print(f"    {name} goes to the {place}, because{why}.")
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
