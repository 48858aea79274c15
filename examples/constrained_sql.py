"""Questions to SQL under a grammar: every query parses, names real columns, and is then run.

The grammar is lark's own language. It is built for the question: a country, a city or a number
can stand in the query only where the question has it, so none is made up.
"""

from __future__ import annotations

import re
import sqlite3

import radixlang
from radixlang import gen, savings

ROWS = [("Ghent", "Belgium", 265), ("Porto", "Portugal", 232), ("Lyon", "France", 522),
        ("Turin", "Italy", 841), ("Malmo", "Sweden", 362), ("Braga", "Portugal", 193)]  # fmt: skip
SHOTS = """\
Table cities(name, country, people), people in thousands.
Q: Which cities are in Italy?
SELECT name FROM cities WHERE country = 'Italy';
Q: How many people live in Turin?
SELECT people FROM cities WHERE name = 'Turin';
Q: How many cities have more than 200 people?
SELECT COUNT(*) FROM cities WHERE people > 200;
Q: In which country is Lyon?
SELECT country FROM cities WHERE name = 'Lyon';
Q: Which cities have less than 400 people?
SELECT name FROM cities WHERE people < 400;
"""
QUESTIONS = (
    "Which cities are in Portugal?",
    "In which country is Malmo?",
    "Which cities have more than 300 people?",
    "How many people live in Ghent?",
)


def grammar(question: str) -> str:
    conditions = [f"\"name = '{city}'\"" for city, _, _ in ROWS if city in question]
    conditions += {f"\"country = '{land}'\"" for _, land, _ in ROWS if land in question}
    conditions += [f'"people " OP " {number}"' for number in re.findall(r"\d+", question)]
    return f"""
        start: "SELECT " column " FROM cities WHERE " condition ";"
        column: "name" | "country" | "people" | "COUNT(*)"
        condition: {" | ".join(conditions)}
        OP: ">" | "<"
    """


@radixlang.function
def to_sql(s, question):
    s += f"{SHOTS}Q: {question}\n"
    s += gen("query", grammar=grammar(question), temperature=0, max_tokens=40)


def main() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE cities(name TEXT, country TEXT, people INTEGER)")
    database.executemany("INSERT INTO cities VALUES (?, ?, ?)", ROWS)
    with radixlang.Runtime() as runtime:
        results = to_sql.run_batch([{"question": each} for each in QUESTIONS], runtime=runtime)
        for result in results:
            found = database.execute(result["query"]).fetchall()
            print(f"{result.row['question']}\n    {result['query']}\n    {found}")
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
