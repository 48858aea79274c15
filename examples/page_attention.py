"""Attention to what matters: answers from some pages of a long prompt, beside those from all of it.

Worked examples of 57 countries, then eight questions about others. Each is asked three times:
reading all keys and values before it; reading pages of 64 positions until what is left out provably
holds less than 3 % of the softmax's mass in every query head; and reading the 4 likeliest pages
beside those that always count, whose bound is told afterwards. The prompt is computed once,
exactly, for all of them. In a prompt of this length most pages count for one head or another; it
saves time from some thousand tokens on.
"""

from __future__ import annotations

import json
from pathlib import Path

import radixlang
from radixlang import Exact, TopMass, TopPages, gen, savings

DATA = Path(__file__).parent / "data" / "capitals.jsonl"
QUESTIONS = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()][-8:]
SHOTS = """Albania: Tirana, Algeria: Algiers, Angola: Luanda, Armenia: Yerevan, Austria: Vienna,
Belarus: Minsk, Belgium: Brussels, Bolivia: Sucre, Bulgaria: Sofia, Cameroon: Yaoundé, Colombia:
Bogotá, Croatia: Zagreb, Cyprus: Nicosia, Denmark: Copenhagen, Ecuador: Quito, Estonia: Tallinn,
Ethiopia: Addis Ababa, Fiji: Suva, Georgia: Tbilisi, Germany: Berlin, Guatemala: Guatemala City,
Haiti: Port-au-Prince, Iceland: Reykjavik, India: New Delhi, Indonesia: Jakarta, Iran: Tehran,
Iraq: Baghdad, Laos: Vientiane, Jamaica: Kingston, Jordan: Amman, Latvia: Riga, Lebanon:
Beirut, Libya: Tripoli, Lithuania: Vilnius, Mali: Bamako, Malta: Valletta, Moldova: Chisinau,
Mongolia: Ulaanbaatar, Morocco: Rabat, Namibia: Windhoek, Nepal: Kathmandu, Nigeria: Abuja,
Oman: Muscat, Pakistan: Islamabad, Panama: Panama City, Paraguay: Asunción, Qatar: Doha,
Romania: Bucharest, Rwanda: Kigali, Senegal: Dakar, Serbia: Belgrade, Slovakia: Bratislava,
Somalia: Mogadishu, Sudan: Khartoum, Syria: Damascus, Tunisia: Tunis, Uganda: Kampala"""


@radixlang.function
def capital_of(s, country, attention):
    s += "Questions about the capitals of the world, and their answers.\n\n"
    for shot in SHOTS.replace("\n", " ").split(", "):
        other, capital = shot.split(": ")
        s += f"Q: What is the capital of {other}?\nA: The capital of {other} is {capital}.\n\n"
    s += f"Q: What is the capital of {country}?\nA: The capital of {country} is"
    s += gen("answer", temperature=0, max_tokens=6, stop=(".", "\n"), attention=attention)


def main() -> None:
    with radixlang.Runtime() as runtime:
        for attention in (Exact(), TopMass(0.03), TopPages(4)):
            rows = [{"country": row["country"], "attention": attention} for row in QUESTIONS]
            results = capital_of.run_batch(rows, runtime=runtime)
            answers = [result["answer"].strip() for result in results]
            right = sum(map(str.__eq__, answers, (row["capital"] for row in QUESTIONS)))
            print(f"{attention}: {', '.join(answers)}")
            print(f"  {right} of {len(answers)} right, {reading(results)}")
        print(f"\n{savings(runtime, tree=True)}")


def reading(results) -> str:
    """What share of their pages the answers read."""
    usages = [result.state.usage("answer") for result in results]
    num_pages = sum(usage.num_pages for usage in usages)
    if not num_pages:
        return "all pages read"
    share = sum(usage.num_pages_read for usage in usages) / num_pages
    missed = max(usage.omitted_mass for usage in usages)
    return f"{share:.0%} of the pages read, at most {missed:.2f} of the mass missed"


if __name__ == "__main__":
    main()
